/* The kernels for CPUs; see kernels.py for their callers and reference.py for the truth.

Plain C with the vector types of GCC and Clang, compiled on the machine that runs it. Numbers are
read as float or bfloat16 and computed as float. Matrices of a chunk are packed with zeros up to a
multiple of LANES, so that no loop has a remainder. Sums are taken in an order that depends on
shapes alone: neither threads nor batch mates change a result.

Letters: B batch, L tokens, H heads, P head width, G groups, N state size, T chunk length. */

#include <math.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#if defined(__SSE__)
#include <xmmintrin.h>
#endif

#if defined(__AVX512F__)
#define LANES 16
#define VECTORS 4
#elif defined(__AVX__)
#define LANES 8
#define VECTORS 2
#else
#define LANES 4
#define VECTORS 4
#endif
#define SMALL 16384 /* numbers up to which a second thread does not pay */
#define PAD 16 /* a multiple of LANES everywhere, so that shapes of buffers do not depend on it */

typedef float vector __attribute__((vector_size(LANES * 4), aligned(4), may_alias));
typedef int64_t index_t;

static inline index_t padded(index_t n) { return (n + PAD - 1) / PAD * PAD; }
static inline index_t least(index_t a, index_t b) { return a < b ? a : b; }

static float *scratch(index_t n) {
    void *memory = NULL;
    if (posix_memalign(&memory, 64, (size_t)(n + PAD) * sizeof(float))) {
        fprintf(stderr, "implicit_models: no memory for a kernel\n");
        abort();
    }
    return memory;
}

/* ---- subnormal numbers ---- */

/* What is left of tokens long ago is a product of many decays, and less than the least normal float
   long before it is zero. Processors take a hundred times as long for such numbers (Intel's; others
   some times). To the end of its block, a thread reads and writes them as zeros. */
#if defined(__SSE__)
typedef unsigned int control_t;
static inline control_t flush_subnormals(void) {
    control_t before = _mm_getcsr();
    _mm_setcsr(before | 0x8040); /* results that are subnormal, and operands */
    return before;
}
static inline void restore_control(control_t *before) { _mm_setcsr(*before); }
#elif defined(__aarch64__)
typedef uint64_t control_t;
static inline control_t flush_subnormals(void) {
    control_t before;
    __asm__ volatile("mrs %0, fpcr" : "=r"(before));
    __asm__ volatile("msr fpcr, %0" : : "r"(before | 1 << 24));
    return before;
}
static inline void restore_control(control_t *before) {
    __asm__ volatile("msr fpcr, %0" : : "r"(*before));
}
#else
typedef int control_t;
static inline control_t flush_subnormals(void) { return 0; }
static inline void restore_control(control_t *before) { (void)before; }
#endif
#define SUBNORMALS_ARE_ZERO                                                                        \
    control_t control __attribute__((cleanup(restore_control), unused)) = flush_subnormals()

/* ---- elementary functions, in a form that compilers vectorise ---- */

static inline float exponential(float x) {
    x = x < -87.3f ? -87.3f : x;
    x = x > 88.7f ? 88.7f : x;
    float n = (x * 1.44269504f + 12582912.0f) - 12582912.0f; /* to the nearest integer */
    float r = (x - n * 0.693359375f) + n * 2.12194440e-4f;
    float p = 1.9875691500e-4f;
    p = p * r + 1.3981999507e-3f;
    p = p * r + 8.3334519073e-3f;
    p = p * r + 4.1665795894e-2f;
    p = p * r + 1.6666665459e-1f;
    p = p * r + 5.0000001201e-1f;
    p = p * r * r + r + 1.0f;
    union { int32_t i; float f; } scale = {((int32_t)n + 127) << 23};
    return p * scale.f;
}

static inline float sigmoid(float x) { return 1.0f / (1.0f + exponential(-x)); }

static inline float softplus(float x) { return x > 20.0f ? x : log1pf(expf(x)); }

/* ---- rows of numbers ---- */

static inline void load(float *restrict to, const void *from, index_t at, index_t n, int bf16) {
    if (bf16) {
        const uint16_t *source = (const uint16_t *)from + at;
        for (index_t i = 0; i < n; i++) {
            union { uint32_t i; float f; } bits = {(uint32_t)source[i] << 16};
            to[i] = bits.f;
        }
    } else {
        memcpy(to, (const float *)from + at, (size_t)n * sizeof(float));
    }
}

static inline void store(void *to, index_t at, const float *restrict from, index_t n, int bf16) {
    if (bf16) {
        uint16_t *target = (uint16_t *)to + at;
        for (index_t i = 0; i < n; i++) {
            union { float f; uint32_t i; } bits = {from[i]};
            uint32_t rounded = (bits.i + 0x7fff + ((bits.i >> 16) & 1)) >> 16;
            target[i] = (uint16_t)(from[i] == from[i] ? rounded : 0x7fc0); /* keep NaN */
        }
    } else {
        memcpy((float *)to + at, from, (size_t)n * sizeof(float));
    }
}

/* Sum in LANES partial sums. */
static inline float dot(const float *restrict a, const float *restrict b, index_t n) {
    vector sums = {0};
    index_t i = 0;
    for (; i + LANES <= n; i += LANES) sums += *(const vector *)(a + i) * *(const vector *)(b + i);
    float sum = 0;
    for (int lane = 0; lane < LANES; lane++) sum += sums[lane];
    for (; i < n; i++) sum += a[i] * b[i];
    return sum;
}

static inline void zero(float *to, index_t n) { memset(to, 0, (size_t)n * sizeof(float)); }

/* ---- small matrix products ---- */

/* Load these numbers once, for all their uses: GCC would read them from memory again at each, and
   AVX-512 processors multiply faster than they read. With fewer registers it spares nothing. */
#if defined(__AVX512F__)
#define IN_REGISTER(numbers) __asm__("" : "+v"(numbers))
#else
#define IN_REGISTER(numbers) (void)(numbers)
#endif

/* C (+)= A B for 4 rows and V vectors of columns; A is read element by element, at any strides. A
   macro, so that the sums are arrays of constant size, which stay in registers. */
#define DEFINE_TILE(name, V)                                                                       \
    static inline void name(float *restrict c, index_t c_row, const float *restrict a,             \
                            index_t a_row, index_t a_column, const float *restrict b,              \
                            index_t b_row, index_t K, int add) {                                   \
        vector sums[4][V];                                                                         \
        for (int r = 0; r < 4; r++)                                                                \
            for (int v = 0; v < V; v++)                                                            \
                sums[r][v] = add ? *(vector *)(c + r * c_row + v * LANES) : (vector){0};           \
        for (index_t k = 0; k < K; k++, a += a_column, b += b_row)                                 \
            for (int v = 0; v < V; v++) {                                                          \
                vector row = *(const vector *)(b + v * LANES);                                     \
                IN_REGISTER(row);                                                                  \
                for (int r = 0; r < 4; r++) sums[r][v] += a[r * a_row] * row;                      \
            }                                                                                      \
        for (int r = 0; r < 4; r++)                                                                \
            for (int v = 0; v < V; v++) *(vector *)(c + r * c_row + v * LANES) = sums[r][v];       \
    }

DEFINE_TILE(tile_wide, VECTORS)
DEFINE_TILE(tile_twice, 2)
DEFINE_TILE(tile_once, 1)

/* C (+)= A B, of M x K and K x N; M a multiple of 4, N one of LANES. Where `shape` is LOWER, A is
   lower triangular, where it is UPPER, upper: what is zero is left out. */
enum { FULL, LOWER, UPPER };

static void product(
    float *restrict c, index_t c_row, const float *restrict a, index_t a_row, index_t a_column,
    const float *restrict b, index_t b_row, index_t M, index_t N, index_t K, int add, int shape) {
    for (index_t j = 0; j < N;) {
        int wide = N - j >= VECTORS * LANES, twice = N - j >= 2 * LANES;
        for (index_t i = 0; i < M; i += 4) {
            index_t from = shape == UPPER ? i : 0, to = shape == LOWER ? least(K, i + 4) : K;
            const float *left = a + i * a_row + from * a_column, *right = b + from * b_row + j;
            float *out = c + i * c_row + j;
            index_t count = to > from ? to - from : 0;
            if (wide)
                tile_wide(out, c_row, left, a_row, a_column, right, b_row, count, add);
            else if (twice)
                tile_twice(out, c_row, left, a_row, a_column, right, b_row, count, add);
            else
                tile_once(out, c_row, left, a_row, a_column, right, b_row, count, add);
        }
        j += wide ? VECTORS * LANES : twice ? 2 * LANES : LANES;
    }
}

static void transpose(float *restrict to, const float *restrict from, index_t rows, index_t columns) {
    for (index_t i = 0; i < rows; i += 8)
        for (index_t j = 0; j < columns; j++)
            for (index_t k = i; k < i + 8; k++) to[j * rows + k] = from[k * columns + j];
}

/* ---- causal convolution and SiLU ---- */

typedef struct {
    index_t B, L, C, K, bf16, row, batch; /* strides of the inputs in elements */
    const void *inputs, *tail;
    const float *weight, *bias; /* (K, C), (C) */
} convolution_t;

#define CONVOLUTION_ROWS 32
#define CHANNELS 128

/* Load `count` rows of channels [c0, c0 + n) from token `first` on; those before 0 are the tail's. */
static void load_channels(const convolution_t *s, float *rows, index_t b, index_t first,
                          index_t count, index_t c0, index_t n) {
    for (index_t i = 0; i < count; i++) {
        index_t token = first + i;
        if (token >= 0)
            load(rows + i * n, s->inputs, b * s->batch + token * s->row + c0, n, (int)s->bf16);
        else if (s->tail)
            load(rows + i * n, s->tail, (b * (s->K - 1) + s->K - 1 + token) * s->C + c0, n,
                 (int)s->bf16);
        else
            zero(rows + i * n, n);
    }
}

/* Call a function whose last argument is the width with a constant, where that is usual: its loops
   over the width are then unrolled and those over channels vectorised. */
#define WITH_WIDTH(function, width, ...)                                                           \
    do {                                                                                           \
        if ((width) == 4)                                                                          \
            function(__VA_ARGS__, 4);                                                              \
        else if ((width) == 3)                                                                     \
            function(__VA_ARGS__, 3);                                                              \
        else if ((width) == 2)                                                                     \
            function(__VA_ARGS__, 2);                                                              \
        else                                                                                       \
            function(__VA_ARGS__, width);                                                          \
    } while (0)
#define INLINE static inline __attribute__((always_inline))

/* The convolution of one token; `C` and `n` are the strides of weights and rows. */
INLINE void convolve(float *restrict sums, const float *restrict bias, const float *restrict weight,
                     index_t C, const float *restrict rows, index_t n, index_t K) {
    for (index_t i = 0; i < n; i++) {
        float sum = bias[i];
        for (index_t k = 0; k < K; k++) sum += weight[k * C + i] * rows[k * n + i];
        sums[i] = sum;
    }
}

void convolution_forward(const convolution_t *s, void *outputs) {
    index_t blocks = (s->L + CONVOLUTION_ROWS - 1) / CONVOLUTION_ROWS;
#pragma omp parallel for schedule(static) if (s->B * s->L * s->C > SMALL)
    for (index_t task = 0; task < s->B * blocks; task++) {
        SUBNORMALS_ARE_ZERO;
        index_t b = task / blocks, first = task % blocks * CONVOLUTION_ROWS;
        index_t count = least(CONVOLUTION_ROWS, s->L - first);
        float *rows = scratch((CONVOLUTION_ROWS + s->K) * CHANNELS), *sums = scratch(CHANNELS);
        for (index_t c0 = 0; c0 < s->C; c0 += CHANNELS) {
            index_t n = least(CHANNELS, s->C - c0);
            load_channels(s, rows, b, first - s->K + 1, count + s->K - 1, c0, n);
            for (index_t i = 0; i < count; i++) {
                WITH_WIDTH(convolve, s->K, sums, s->bias + c0, s->weight + c0, s->C, rows + i * n, n);
                for (index_t c = 0; c < n; c++) sums[c] *= sigmoid(sums[c]);
                store(outputs, (b * s->L + first + i) * s->C + c0, sums, n, (int)s->bf16);
            }
        }
        free(rows);
        free(sums);
    }
}

/* Go back through SiLU and collect the gradients of weights (K rows) and bias (one more). */
INLINE void collect(float *restrict gradient, float *restrict part, const float *restrict sums,
                    const float *restrict rows, index_t n, index_t K) {
    for (index_t i = 0; i < n; i++) {
        float gate = sigmoid(sums[i]);
        float inner = gradient[i] * gate * (1.0f + sums[i] * (1.0f - gate));
        gradient[i] = inner;
        for (index_t k = 0; k < K; k++) part[k * n + i] += inner * rows[k * n + i];
        part[K * n + i] += inner;
    }
}

/* Gather at one token the gradients of itself and the K - 1 tokens after it, into which it went. */
INLINE void gather(float *restrict sums, const float *restrict weight, index_t C,
                   const float *restrict inner, index_t n, index_t K) {
    for (index_t i = 0; i < n; i++) {
        float sum = 0;
        for (index_t k = 0; k < K; k++) sum += weight[k * C + i] * inner[(K - 1 - k) * n + i];
        sums[i] = sum;
    }
}

/* Gradients: of the inputs (at strides of their own), of the tail (B, K-1, C) where there is one,
   and parts (B, K + 1, C) of those of the weight and the bias. `outgoing` is (B, L, C). */
void convolution_backward(const convolution_t *s, const void *outgoing, void *inputs_gradient,
                          index_t row, index_t batch, void *tail_gradient, float *parts) {
    const index_t pieces = (s->C + CHANNELS - 1) / CHANNELS, K = s->K;
#pragma omp parallel for schedule(static) if (s->B * s->L * s->C > SMALL)
    for (index_t task = 0; task < s->B * pieces; task++) {
        SUBNORMALS_ARE_ZERO;
        index_t b = task / pieces, c0 = task % pieces * CHANNELS, n = least(CHANNELS, s->C - c0);
        float *rows = scratch((CONVOLUTION_ROWS + K) * n);
        float *inner = scratch((CONVOLUTION_ROWS + 2 * K) * n);
        float *sums = scratch(n), *part = scratch((K + 1) * n);
        const float *weight = s->weight + c0;
        zero(part, (K + 1) * n);
        /* Blocks of tokens from the last to the first; `inner`, the gradient before SiLU, of the
           K - 1 tokens behind a block is kept from the block before. */
        zero(inner, (K - 1) * n);
        for (index_t end = s->L; end > 0; end -= CONVOLUTION_ROWS) {
            index_t first = end > CONVOLUTION_ROWS ? end - CONVOLUTION_ROWS : 0;
            index_t count = end - first;
            memmove(inner + count * n, inner, (size_t)((K - 1) * n) * sizeof(float));
            load_channels(s, rows, b, first - K + 1, count + K - 1, c0, n);
            for (index_t t = 0; t < count; t++) {
                float *restrict gradient = inner + t * n;
                load(gradient, outgoing, (b * s->L + first + t) * s->C + c0, n, (int)s->bf16);
                WITH_WIDTH(convolve, K, sums, s->bias + c0, weight, s->C, rows + t * n, n);
                WITH_WIDTH(collect, K, gradient, part, sums, rows + t * n, n);
            }
            for (index_t t = 0; t < count; t++) {
                WITH_WIDTH(gather, K, sums, weight, s->C, inner + t * n, n);
                store(inputs_gradient, b * batch + (first + t) * row + c0, sums, n, (int)s->bf16);
            }
        }
        if (tail_gradient) { /* of tokens whose own gradients are nobody's */
            memmove(inner + (K - 1) * n, inner, (size_t)((K - 1) * n) * sizeof(float));
            zero(inner, (K - 1) * n);
        }
        for (index_t t = 1 - K; tail_gradient && t < 0; t++) {
            gather(sums, weight, s->C, inner + (K - 1 + t) * n, n, K);
            store(tail_gradient, (b * (K - 1) + K - 1 + t) * s->C + c0, sums, n, (int)s->bf16);
        }
        for (index_t k = 0; k <= K; k++)
            memcpy(parts + (b * (K + 1) + k) * s->C + c0, part + k * n, (size_t)n * sizeof(float));
        free(rows);
        free(inner);
        free(sums);
        free(part);
    }
}

/* ---- state-space scan ---- */

typedef struct {
    index_t B, L, H, P, G, N, T, blocks, bf16;     /* blocks of heads in a group */
    index_t row, batch, step_row, step_batch;      /* strides of `activated` and `time_step` */
    const void *activated, *time_step;             /* inputs, B and C side by side; raw time step */
    const float *bias, *rate, *skip;               /* (H) each */
    const float *state;                            /* (B, H, P, N) before the tokens, or none */
    const index_t *counts;                         /* tokens that count in each sequence, or none */
} scan_t;

typedef struct { /* a chunk, packed */
    index_t n, rows, T, P, N; /* tokens, and as many rounded up to four; sizes padded */
    float *inputs, *input_map, *output_map, *input_map_t, *scores;
    float *step, *decay, *slope, *weights, *mixed, *written;
} chunk_t;

static index_t chunk_size(index_t T, index_t P, index_t N) {
    return 3 * T * P + 3 * T * N + 2 * T * T + 4 * T;
}

static chunk_t new_chunk(const scan_t *s, float *memory) {
    chunk_t c;
    c.n = c.rows = 0, c.T = padded(s->T), c.P = padded(s->P), c.N = padded(s->N);
    c.inputs = memory, memory += c.T * c.P;
    c.mixed = memory, memory += c.T * c.P;
    c.written = memory, memory += c.T * c.P;
    c.input_map = memory, memory += c.T * c.N;
    c.output_map = memory, memory += c.T * c.N;
    c.input_map_t = memory, memory += c.T * c.N;
    c.scores = memory, memory += c.T * c.T;
    c.weights = memory, memory += c.T * c.T;
    c.step = memory, memory += c.T;
    c.decay = memory, memory += c.T;
    c.slope = memory;
    return c;
}

static void pack(float *restrict to, index_t rows, index_t columns, const scan_t *s, index_t b,
                 index_t first, index_t n, index_t channel, index_t width) {
    for (index_t i = 0; i < rows; i++) {
        float *row = to + i * columns;
        if (i < n) {
            load(row, s->activated, b * s->batch + (first + i) * s->row + channel, width,
                 (int)s->bf16);
            zero(row + width, columns - width);
        } else {
            zero(row, columns);
        }
    }
}

/* Take up what all heads of a group share: B, C and their products. */
static void take_maps(const scan_t *s, chunk_t *c, index_t b, index_t g, index_t first,
                      int outputs) {
    index_t inner = s->H * s->P;
    c->rows = (c->n + 3) / 4 * 4;
    pack(c->input_map, c->T, c->N, s, b, first, c->n, inner + g * s->N, s->N);
    if (!outputs) return;
    pack(c->output_map, c->T, c->N, s, b, first, c->n, inner + (s->G + g) * s->N, s->N);
    transpose(c->input_map_t, c->input_map, c->T, c->N);
    product(c->scores, c->T, c->output_map, c->N, 1, c->input_map_t, c->T, c->rows, c->T, c->N, 0,
            FULL);
}

/* Take up a head's inputs, time steps and decay since the chunk's start. */
static void take_head(const scan_t *s, chunk_t *c, index_t b, index_t h, index_t first) {
    pack(c->inputs, c->T, c->P, s, b, first, c->n, h * s->P, s->P);
    float sum = 0;
    for (index_t i = 0; i < c->T; i++) {
        float step = 0;
        if (i < c->n) {
            load(&step, s->time_step, b * s->step_batch + (first + i) * s->step_row + h, 1,
                 (int)s->bf16);
            step += s->bias[h];
            c->slope[i] = sigmoid(step);
            step = softplus(step);
        }
        c->step[i] = step;
        sum += step * s->rate[h];
        c->decay[i] = sum;
    }
}

/* How much of each token's input is left at each later one, zero at earlier ones. */
static void decays(chunk_t *c) {
    for (index_t i = 0; i < c->rows; i++) {
        float *restrict row = c->weights + i * c->T;
        const float *restrict decay = c->decay;
        float at = decay[i];
        index_t end = padded(i + 1);
        for (index_t j = 0; j < end; j++) row[j] = exponential(at - decay[j]);
        zero(row + i + 1, c->T - i - 1);
    }
}

static void scale_rows(float *to, const float *from, const float *restrict by, index_t rows,
                       index_t columns) {
    for (index_t i = 0; i < rows; i++)
        for (index_t j = 0; j < columns; j++) to[i * columns + j] = from[i * columns + j] * by[i];
}

/* Any of outputs (B, L, H P), the last state (B, H, P, N), and the states before each chunk (B,
   chunks, H, padded N, padded P), for the backward pass, may be none. */
void scan_forward(const scan_t *s, void *outputs, float *final_state, float *states) {
    index_t tasks = s->B * s->G * s->blocks, chunks = (s->L + s->T - 1) / s->T;
    index_t heads = s->H / s->G / s->blocks, N = padded(s->N), P = padded(s->P), T = padded(s->T);
#pragma omp parallel for schedule(static) if (s->B * s->L * s->H * s->P > SMALL / 4)
    for (index_t task = 0; task < tasks; task++) {
        SUBNORMALS_ARE_ZERO;
        index_t b = task / (s->G * s->blocks), block = task % (s->G * s->blocks);
        index_t g = block / s->blocks, length = s->counts ? least(s->counts[b], s->L) : s->L;
        float *memory = scratch(chunk_size(T, P, N)), *state = scratch(heads * N * P);
        float *factor = scratch(T);
        chunk_t c = new_chunk(s, memory);
        zero(state, heads * N * P);
        for (index_t k = 0; s->state && k < heads; k++)
            for (index_t p = 0; p < s->P; p++)
                for (index_t n = 0; n < s->N; n++)
                    state[(k * N + n) * P + p] =
                        s->state[((b * s->H + block * heads + k) * s->P + p) * s->N + n];
        for (index_t chunk = 0; chunk * s->T < length; chunk++) {
            index_t first = chunk * s->T;
            c.n = least(s->T, length - first);
            take_maps(s, &c, b, g, first, outputs != NULL);
            for (index_t k = 0; k < heads; k++) {
                index_t h = block * heads + k;
                float *here = state + k * N * P;
                take_head(s, &c, b, h, first);
                if (states)
                    memcpy(states + ((b * chunks + chunk) * s->H + h) * N * P, here,
                           (size_t)(N * P) * sizeof(float));
                if (outputs) {
                    int past = chunk || s->state;
                    if (past) {
                        product(c.mixed, P, c.output_map, N, 1, here, P, c.rows, P, N, 0, FULL);
                        for (index_t i = 0; i < T; i++) factor[i] = exponential(c.decay[i]);
                        scale_rows(c.mixed, c.mixed, factor, c.rows, P);
                    }
                    decays(&c);
                    for (index_t i = 0; i < c.rows; i++)
                        for (index_t j = 0; j < T; j++)
                            c.weights[i * T + j] *= c.scores[i * T + j] * c.step[j];
                    product(c.mixed, P, c.weights, T, 1, c.inputs, P, c.rows, P, c.n, past, LOWER);
                    for (index_t i = 0; i < c.n; i++) {
                        float *restrict row = c.mixed + i * P;
                        const float *restrict input = c.inputs + i * P;
                        for (index_t p = 0; p < s->P; p++) row[p] += s->skip[h] * input[p];
                        store(outputs, (b * s->L + first + i) * s->H * s->P + h * s->P, row, s->P,
                              (int)s->bf16);
                    }
                }
                if (final_state || first + s->T < length) {
                    float total = c.decay[c.n - 1], kept = exponential(total);
                    for (index_t i = 0; i < T; i++)
                        factor[i] = exponential(total - c.decay[i]) * c.step[i];
                    scale_rows(c.written, c.inputs, factor, c.n, P);
                    for (index_t i = 0; i < N * P; i++) here[i] *= kept;
                    product(here, P, c.input_map, 1, N, c.written, P, N, P, c.n, 1, FULL);
                }
            }
        }
        for (index_t k = 0; final_state && k < heads; k++)
            for (index_t p = 0; p < s->P; p++)
                for (index_t n = 0; n < s->N; n++)
                    final_state[((b * s->H + block * heads + k) * s->P + p) * s->N + n] =
                        state[(k * N + n) * P + p];
        free(memory);
        free(state);
        free(factor);
    }
}

/* One token after a state, whose new value is written where it is wanted. */
void scan_step(const scan_t *s, void *outputs, float *final_state) {
    index_t inner = s->H * s->P;
#pragma omp parallel for schedule(static) if (s->B * inner * s->N > SMALL)
    for (index_t task = 0; task < s->B * s->H; task++) {
        SUBNORMALS_ARE_ZERO;
        index_t b = task / s->H, h = task % s->H, g = h / (s->H / s->G);
        float *input = scratch(s->P + 2 * s->N), *map = input + s->P, *output_map = map + s->N;
        int bf16 = (int)s->bf16;
        float step;
        load(&step, s->time_step, b * s->step_batch + h, 1, bf16);
        step = softplus(step + s->bias[h]);
        load(input, s->activated, b * s->batch + h * s->P, s->P, bf16);
        load(map, s->activated, b * s->batch + inner + g * s->N, s->N, bf16);
        load(output_map, s->activated, b * s->batch + inner + (s->G + g) * s->N, s->N, bf16);
        float kept = exponential(step * s->rate[h]), aligned = dot(map, output_map, s->N) * step;
        const float *state = s->state + task * s->P * s->N;
        for (index_t p = 0; p < s->P; p++) {
            const float *restrict row = state + p * s->N;
            float x = input[p];
            if (final_state) {
                float *restrict next = final_state + (task * s->P + p) * s->N;
                for (index_t n = 0; n < s->N; n++) next[n] = kept * row[n] + step * x * map[n];
            }
            if (outputs)
                input[p] = kept * dot(row, output_map, s->N) + (aligned + s->skip[h]) * x;
        }
        if (outputs) store(outputs, task * s->P, input, s->P, bf16);
        free(input);
    }
}

/* Gradients, of which `states` are those of the forward pass, `outgoing` (B, L, H P) and
   `final_gradient` (B, H, P, N) may be none:
   of the inputs into `activated_gradient` (B, L, channels), whose B and C parts go to `maps`
   (blocks, 2, B, L, G N) of float; of the raw time steps at strides of their own; of the state
   before (or none); and `parts` (B, 3, H) of those of bias, rate and skip. */
void scan_backward(const scan_t *s, const float *states, const void *outgoing,
                   const float *final_gradient, void *activated_gradient, float *maps,
                   void *step_gradient, index_t step_row, index_t step_batch,
                   float *state_gradient, float *parts) {
    index_t tasks = s->B * s->G * s->blocks, chunks = (s->L + s->T - 1) / s->T;
    index_t heads = s->H / s->G / s->blocks, N = padded(s->N), P = padded(s->P), T = padded(s->T);
    index_t channels = s->H * s->P + 2 * s->G * s->N;
#pragma omp parallel for schedule(static) if (s->B * s->L * s->H * s->P > SMALL / 4)
    for (index_t task = 0; task < tasks; task++) {
        SUBNORMALS_ARE_ZERO;
        index_t b = task / (s->G * s->blocks), block = task % (s->G * s->blocks);
        index_t g = block / s->blocks;
        float *memory = scratch(chunk_size(T, P, N)), *after = scratch(heads * N * P);
        float *more = scratch(5 * T * P + 4 * T * N + 2 * T * T + 2 * N * P + 8 * T);
        chunk_t c = new_chunk(s, memory);
        float *out = more, *out_scaled = out + T * P, *inputs_t = out_scaled + T * P;
        float *inner = inputs_t + T * P, *through = inner + T * P;
        float *map_c = through + T * P, *map_b = map_c + T * N;
        float *past_c = map_b + T * N, *past_b = past_c + T * N;
        float *weights = past_b + T * N, *sum_scores = weights + T * T;
        float *state_t = sum_scores + T * T, *after_t = state_t + N * P;
        float *e_past = after_t + N * P, *e_end = e_past + T, *d_decay = e_end + T;
        float *d_step = d_decay + T, *below = d_step + T;
        zero(after, heads * N * P);
        for (index_t k = 0; final_gradient && k < heads; k++)
            for (index_t p = 0; p < s->P; p++)
                for (index_t n = 0; n < s->N; n++)
                    after[(k * N + n) * P + p] =
                        final_gradient[((b * s->H + block * heads + k) * s->P + p) * s->N + n];
        for (index_t k = 0; k < heads; k++)
            for (int i = 0; i < 3; i++) parts[(b * 3 + i) * s->H + block * heads + k] = 0;
        for (index_t chunk = chunks - 1; chunk >= 0; chunk--) {
            index_t first = chunk * s->T;
            c.n = least(s->T, s->L - first);
            take_maps(s, &c, b, g, first, 1);
            zero(sum_scores, T * T);
            zero(map_c, T * N);
            zero(map_b, T * N);
            for (index_t k = 0; k < heads; k++) {
                index_t h = block * heads + k;
                float *end = after + k * N * P;
                const float *start = states + ((b * chunks + chunk) * s->H + h) * N * P;
                take_head(s, &c, b, h, first);
                float total = c.decay[c.n - 1], kept = exponential(total);
                for (index_t i = 0; i < T; i++) {
                    e_past[i] = exponential(c.decay[i]);
                    e_end[i] = exponential(total - c.decay[i]);
                    d_decay[i] = d_step[i] = 0;
                }
                for (index_t i = 0; i < T; i++) {
                    if (outgoing && i < c.n) {
                        load(out + i * P, outgoing,
                             (b * s->L + first + i) * s->H * s->P + h * s->P, s->P, (int)s->bf16);
                        zero(out + i * P + s->P, P - s->P);
                    } else {
                        zero(out + i * P, P);
                    }
                }

                /* What the chunk's inputs wrote into the state after it. */
                product(through, P, c.input_map, N, 1, end, P, c.rows, P, N, 0, FULL);
                transpose(after_t, end, N, P);
                product(past_b, N, c.inputs, P, 1, after_t, N, c.rows, N, P, 0, FULL);
                float d_total = kept * dot(start, end, N * P);
                for (index_t i = 0; i < c.n; i++) {
                    float weight = e_end[i] * c.step[i];
                    float slope = dot(c.inputs + i * P, through + i * P, P);
                    d_step[i] += slope * e_end[i];
                    if (i < c.n - 1) { /* the last does not decay until the end */
                        d_decay[i] -= slope * weight;
                        d_total += slope * weight;
                    }
                    for (index_t n = 0; n < N; n++)
                        map_b[i * N + n] += weight * past_b[i * N + n];
                    for (index_t p = 0; p < P; p++)
                        inner[i * P + p] = weight * through[i * P + p] + s->skip[h] * out[i * P + p];
                }
                for (index_t i = c.n * P; i < T * P; i++) inner[i] = 0;

                /* What the state before gave to the outputs. */
                transpose(state_t, start, N, P);
                scale_rows(out_scaled, out, e_past, T, P);
                product(past_c, N, out_scaled, P, 1, state_t, N, c.rows, N, P, 0, FULL);
                for (index_t i = 0; i < c.n; i++) {
                    d_decay[i] += dot(c.output_map + i * N, past_c + i * N, N);
                    for (index_t n = 0; n < N; n++) map_c[i * N + n] += past_c[i * N + n];
                }
                for (index_t i = 0; i < N * P; i++) end[i] *= kept;
                product(end, P, c.output_map, 1, N, out_scaled, P, N, P, c.n, 1, FULL);

                /* What the chunk's tokens gave to each other. */
                transpose(inputs_t, c.inputs, T, P);
                product(weights, T, out, P, 1, inputs_t, T, c.rows, T, P, 0, FULL);
                decays(&c);
                zero(below, T);
                for (index_t i = 0; i < c.n; i++) {
                    const float *restrict gradient = weights + i * T, *restrict step = c.step;
                    const float *restrict score = c.scores + i * T;
                    float *restrict weight = c.weights + i * T, *restrict sum = sum_scores + i * T;
                    float *restrict column = below;
                    for (index_t j = 0; j < T; j++) {
                        float unit = score[j] * weight[j];
                        sum[j] += gradient[j] * weight[j] * step[j];
                        column[j] += j == i ? 0.0f : gradient[j] * unit;
                        weight[j] = unit * step[j];
                    }
                    /* A token does not decay for itself: added and subtracted, it would cancel. */
                    float own = weight[i];
                    weight[i] = 0;
                    d_decay[i] += dot(gradient, weight, T);
                    weight[i] = own;
                    d_step[i] += gradient[i] * score[i];
                }
                for (index_t j = 0; j < c.n; j++) {
                    d_step[j] += below[j];
                    d_decay[j] -= below[j] * c.step[j];
                }
                product(inner, P, c.weights, 1, T, out, P, c.rows, P, c.n, 1, UPPER);

                /* From the decays to the time steps. */
                d_decay[c.n - 1] += d_total;
                float later = 0, rate_sum = 0, bias_part = 0, skip_sum = 0;
                for (index_t i = c.n - 1; i >= 0; i--) {
                    later += d_decay[i];
                    rate_sum += later * c.step[i];
                    float raw = (d_step[i] + later * s->rate[h]) * c.slope[i];
                    bias_part += raw;
                    skip_sum += dot(out + i * P, c.inputs + i * P, P);
                    store(step_gradient, b * step_batch + (first + i) * step_row + h, &raw, 1,
                          (int)s->bf16);
                    store(activated_gradient, (b * s->L + first + i) * channels + h * s->P,
                          inner + i * P, s->P, (int)s->bf16);
                }
                parts[(b * 3 + 0) * s->H + h] += bias_part;
                parts[(b * 3 + 1) * s->H + h] += rate_sum;
                parts[(b * 3 + 2) * s->H + h] += skip_sum;
            }
            product(map_c, N, sum_scores, T, 1, c.input_map, N, c.rows, N, c.n, 1, LOWER);
            product(map_b, N, sum_scores, 1, T, c.output_map, N, c.rows, N, c.n, 1, UPPER);
            index_t piece = block % s->blocks, width = s->G * s->N;
            for (index_t i = 0; i < c.n; i++) {
                index_t row = ((piece * 2 * s->B + b) * s->L + first + i) * width + g * s->N;
                memcpy(maps + row, map_b + i * N, (size_t)s->N * sizeof(float));
                memcpy(maps + row + s->B * s->L * width, map_c + i * N,
                       (size_t)s->N * sizeof(float));
            }
        }
        for (index_t k = 0; state_gradient && k < heads; k++)
            for (index_t p = 0; p < s->P; p++)
                for (index_t n = 0; n < s->N; n++)
                    state_gradient[((b * s->H + block * heads + k) * s->P + p) * s->N + n] =
                        after[(k * N + n) * P + p];
        free(memory);
        free(after);
        free(more);
    }
}

/* ---- norms ---- */

typedef struct {
    index_t rows, D, groups, bf16, gate_row; /* stride of the gate's rows */
    const void *inputs, *gate;               /* no gate: the plain norm */
    const float *weight;
    float epsilon;
} norm_t;

#define NORM_ROWS 64

/* For the callers, who make room. */
const int64_t padding = PAD, norm_rows = NORM_ROWS;

static inline float inverse_rms(const float *row, index_t n, float epsilon) {
    return 1.0f / sqrtf(dot(row, row, n) / (float)n + epsilon);
}

static void load_gated(const norm_t *s, index_t i, float *restrict row, float *restrict gate) {
    load(row, s->inputs, i * s->D, s->D, (int)s->bf16);
    if (!s->gate) return;
    load(gate, s->gate, i * s->gate_row, s->D, (int)s->bf16);
    for (index_t d = 0; d < s->D; d++) row[d] *= gate[d] * sigmoid(gate[d]);
}

void norm_forward(const norm_t *s, void *outputs) {
    index_t blocks = (s->rows + NORM_ROWS - 1) / NORM_ROWS, width = s->D / s->groups;
#pragma omp parallel for schedule(static) if (s->rows * s->D > SMALL)
    for (index_t block = 0; block < blocks; block++) {
        SUBNORMALS_ARE_ZERO;
        float *row = scratch(2 * s->D), *gate = row + s->D;
        for (index_t i = block * NORM_ROWS; i < least(s->rows, (block + 1) * NORM_ROWS); i++) {
            load_gated(s, i, row, gate);
            for (index_t g = 0; g < s->groups; g++) {
                float *restrict part = row + g * width;
                const float *restrict weight = s->weight + g * width;
                float scale = inverse_rms(part, width, s->epsilon);
                for (index_t d = 0; d < width; d++) part[d] *= scale * weight[d];
            }
            store(outputs, i * s->D, row, s->D, (int)s->bf16);
        }
        free(row);
    }
}

/* Gradients of inputs and gate (its rows at a stride of their own), and parts (blocks of NORM_ROWS
   rows, D) of the weight's. */
void norm_backward(const norm_t *s, const void *outgoing, void *inputs_gradient,
                   void *gate_gradient, index_t gate_row, float *parts) {
    index_t blocks = (s->rows + NORM_ROWS - 1) / NORM_ROWS, width = s->D / s->groups;
#pragma omp parallel for schedule(static) if (s->rows * s->D > SMALL)
    for (index_t block = 0; block < blocks; block++) {
        SUBNORMALS_ARE_ZERO;
        float *row = scratch(5 * s->D), *gate = row + s->D, *out = gate + s->D;
        float *input = out + s->D, *sums = input + s->D;
        zero(sums, s->D);
        for (index_t i = block * NORM_ROWS; i < least(s->rows, (block + 1) * NORM_ROWS); i++) {
            load_gated(s, i, row, gate);
            load(out, outgoing, i * s->D, s->D, (int)s->bf16);
            for (index_t g = 0; g < s->groups; g++) {
                float *restrict part = row + g * width, *restrict gradient = out + g * width;
                float *restrict sum = sums + g * width;
                const float *restrict weight = s->weight + g * width;
                float scale = inverse_rms(part, width, s->epsilon);
                for (index_t d = 0; d < width; d++) {
                    sum[d] += gradient[d] * part[d] * scale;
                    gradient[d] *= weight[d];
                }
                float along = dot(gradient, part, width) / (float)width * scale * scale * scale;
                for (index_t d = 0; d < width; d++)
                    gradient[d] = gradient[d] * scale - part[d] * along;
            }
            if (s->gate) {
                load(input, s->inputs, i * s->D, s->D, (int)s->bf16);
                for (index_t d = 0; d < s->D; d++) {
                    float open = sigmoid(gate[d]), z = gate[d];
                    gate[d] = out[d] * input[d] * open * (1.0f + z * (1.0f - open));
                    out[d] *= z * open;
                }
                store(gate_gradient, i * gate_row, gate, s->D, (int)s->bf16);
            }
            store(inputs_gradient, i * s->D, out, s->D, (int)s->bf16);
        }
        memcpy(parts + block * s->D, sums, (size_t)s->D * sizeof(float));
        free(row);
    }
}

/* The end of an iteration: norm, step towards it, and each row's relative residual. */
void update(const norm_t *s, const float *value, float damping, float *following,
            float *residual) {
    index_t blocks = (s->rows + NORM_ROWS - 1) / NORM_ROWS;
#pragma omp parallel for schedule(static) if (s->rows * s->D > SMALL)
    for (index_t block = 0; block < blocks; block++) {
        SUBNORMALS_ARE_ZERO;
        float *row = scratch(2 * s->D), *change = row + s->D;
        for (index_t i = block * NORM_ROWS; i < least(s->rows, (block + 1) * NORM_ROWS); i++) {
            const float *restrict before = value + i * s->D;
            float *restrict next = following + i * s->D;
            load(row, s->inputs, i * s->D, s->D, 0);
            float scale = inverse_rms(row, s->D, s->epsilon);
            for (index_t d = 0; d < s->D; d++) {
                row[d] *= scale * s->weight[d];
                change[d] = row[d] - before[d];
                next[d] = damping == 1.0f ? row[d] : before[d] + damping * change[d];
            }
            float size = sqrtf(dot(row, row, s->D)), distance = sqrtf(dot(change, change, s->D));
            float floor = distance * 1.1920929e-7f;
            float divisor = size > floor || size != size ? size : floor;
            divisor = divisor < 1.17549435e-38f ? 1.17549435e-38f : divisor;
            residual[i] = isinf(size) ? INFINITY : distance / divisor;
        }
        free(row);
    }
}

#include "attention.c"
#include "cross_entropy.c"
