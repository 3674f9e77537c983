/* Causal attention with rotary positions, and the gate of a feed-forward network. Part of kernels.c,
   which includes it.

Keys and queries go in tiles of TILE tokens, so that no matrix of all pairs is ever held (Dao 2023).
A token's sums depend on the tokens up to it alone, in an order that does not know how many follow. */

#define TILE 64

typedef struct {
    index_t B, L, H, G, P;               /* G heads of keys and values, each for H / G of queries */
    const float *queries, *keys, *values; /* (B, L, H P) and twice (B, L, G P) */
    const float *cosine, *sine;           /* (L, P) */
    float scale;                          /* of the products of queries and keys */
} attention_t;

static inline index_t tile_length(const attention_t *s) {
    return s->L ? least(TILE, padded(s->L)) : TILE;
}

/* Turn the pairs (i, i + P/2) of a row. */
static inline void turn(float *restrict to, const float *restrict from, const float *restrict cosine,
                        const float *restrict sine, float scale, index_t P) {
    index_t half = P / 2;
    for (index_t i = 0; i < half; i++) {
        to[i] = (from[i] * cosine[i] - from[half + i] * sine[i]) * scale;
        to[half + i] = (from[half + i] * cosine[half + i] + from[i] * sine[half + i]) * scale;
    }
}

/* From the gradient of what `turn` gives to that of what it takes. */
static inline void turn_back(float *restrict to, const float *restrict from,
                             const float *restrict cosine, const float *restrict sine, float scale,
                             index_t P) {
    index_t half = P / 2;
    for (index_t i = 0; i < half; i++) {
        to[i] = (from[i] * cosine[i] + from[half + i] * sine[half + i]) * scale;
        to[half + i] = (from[half + i] * cosine[half + i] - from[i] * sine[i]) * scale;
    }
}

/* Pack a head's rows, turned where there is a `scale`, with zeros up to `rows` and `columns`. */
static void pack_head(float *restrict to, index_t rows, index_t columns, const attention_t *s,
                      const float *from, index_t heads, index_t b, index_t h, float scale) {
    for (index_t t = 0; t < rows; t++) {
        float *row = to + t * columns;
        if (t >= s->L) {
            zero(row, columns);
            continue;
        }
        const float *source = from + ((b * s->L + t) * heads + h) * s->P;
        if (scale != 0)
            turn(row, source, s->cosine + t * s->P, s->sine + t * s->P, scale, s->P);
        else
            memcpy(row, source, (size_t)s->P * sizeof(float));
        zero(row + s->P, columns - s->P);
    }
}

static void transpose_tiles(float *to, const float *from, index_t rows, index_t T, index_t P) {
    for (index_t first = 0; first < rows; first += T)
        transpose(to + first * P, from + first * P, T, P);
}

static inline float largest(const float *restrict row, index_t n) {
    float lanes[LANES], most;
    for (int lane = 0; lane < LANES; lane++) lanes[lane] = -INFINITY;
    for (index_t i = 0; i < n; i += LANES)
        for (int lane = 0; lane < LANES; lane++)
            lanes[lane] = row[i + lane] > lanes[lane] ? row[i + lane] : lanes[lane];
    most = lanes[0];
    for (int lane = 1; lane < LANES; lane++) most = lanes[lane] > most ? lanes[lane] : most;
    return most;
}

static inline float sum_of(const float *restrict row, index_t n) {
    vector sums = {0};
    float sum = 0;
    for (index_t i = 0; i < n; i += LANES) sums += *(const vector *)(row + i);
    for (int lane = 0; lane < LANES; lane++) sum += sums[lane];
    return sum;
}

static inline void exponentials(float *restrict row, float less, index_t n) {
    for (index_t i = 0; i < n; i++) row[i] = exponential(row[i] - less);
}

/* Outputs (B, L, H P), and for the backward pass the logarithms of the sums (B, H, L), or none. */
void attention_forward(const attention_t *s, float *outputs, float *logarithms) {
    index_t P = padded(s->P), T = tile_length(s), rows = (s->L + T - 1) / T * T;
#pragma omp parallel for schedule(dynamic) if (s->B * s->H * s->L * s->L > SMALL)
    for (index_t task = 0; task < s->B * s->H; task++) {
        SUBNORMALS_ARE_ZERO;
        index_t b = task / s->H, h = task % s->H, g = h / (s->H / s->G);
        float *values = scratch(3 * rows * P + 2 * T * P + T * T + 2 * T);
        float *keys = values + rows * P, *keys_t = keys + rows * P, *queries = keys_t + rows * P;
        float *mixed = queries + T * P, *scores = mixed + T * P, *most = scores + T * T;
        float *sums = most + T;
        pack_head(values, rows, P, s, s->values, s->G, b, g, 0);
        pack_head(keys, rows, P, s, s->keys, s->G, b, g, 1);
        transpose_tiles(keys_t, keys, rows, T, P);
        for (index_t first = 0; first < s->L; first += T) {
            index_t n = least(T, s->L - first), up = (n + 3) / 4 * 4;
            for (index_t i = 0; i < up; i++) {
                index_t t = first + i;
                zero(queries + i * P, P);
                if (i < n)
                    turn(queries + i * P, s->queries + ((b * s->L + t) * s->H + h) * s->P,
                         s->cosine + t * s->P, s->sine + t * s->P, s->scale, s->P);
                most[i] = -INFINITY;
                sums[i] = 0;
            }
            zero(mixed, T * P);
            for (index_t past = 0; past <= first; past += T) {
                int own = past == first;
                product(scores, T, queries, P, 1, keys_t + past * P, T, up, T, P, 0, FULL);
                for (index_t i = 0; i < up; i++) {
                    float *restrict row = scores + i * T, *restrict mix = mixed + i * P;
                    for (index_t j = i + 1; own && j < T; j++) row[j] = -INFINITY;
                    float now = largest(row, T);
                    now = now > most[i] ? now : most[i];
                    float kept = exponential(most[i] - now);
                    most[i] = now;
                    exponentials(row, now, T);
                    if (own) zero(row + i + 1, T - i - 1);
                    sums[i] = sums[i] * kept + sum_of(row, T);
                    for (index_t p = 0; past && p < P; p++) mix[p] *= kept;
                }
                product(mixed, P, scores, T, 1, values + past * P, P, up, P, own ? up : T, 1,
                        own ? LOWER : FULL);
            }
            for (index_t i = 0; i < n; i++) {
                float *restrict to = outputs + ((b * s->L + first + i) * s->H + h) * s->P;
                const float *restrict mix = mixed + i * P;
                float share = 1.0f / sums[i];
                for (index_t p = 0; p < s->P; p++) to[p] = mix[p] * share;
                if (logarithms) logarithms[task * s->L + first + i] = most[i] + logf(sums[i]);
            }
        }
        free(values);
    }
}

/* Gradients of queries, keys and values from those of the outputs. */
void attention_backward(const attention_t *s, const float *outputs, const float *logarithms,
                        const float *outgoing, float *queries_gradient, float *keys_gradient,
                        float *values_gradient) {
    index_t P = padded(s->P), T = tile_length(s), rows = (s->L + T - 1) / T * T;
    index_t shared = s->H / s->G;
#pragma omp parallel for schedule(dynamic) if (s->B * s->H * s->L * s->L > SMALL)
    for (index_t task = 0; task < s->B * s->G; task++) {
        SUBNORMALS_ARE_ZERO;
        index_t b = task / s->G, g = task % s->G, size = rows * P;
        float *keys = scratch(8 * size + 2 * T * T + rows), *keys_t = keys + size;
        float *values_t = keys_t + size, *key_sums = values_t + size, *value_sums = key_sums + size;
        float *queries = value_sums + size, *out = queries + size, *query_sums = out + size;
        float *weights = query_sums + size, *slopes = weights + T * T, *along = slopes + T * T;
        pack_head(keys, rows, P, s, s->values, s->G, b, g, 0);
        transpose_tiles(values_t, keys, rows, T, P);
        pack_head(keys, rows, P, s, s->keys, s->G, b, g, 1);
        transpose_tiles(keys_t, keys, rows, T, P);
        zero(key_sums, 2 * size);
        for (index_t h = g * shared; h < (g + 1) * shared; h++) {
            const float *logarithm = logarithms + (b * s->H + h) * s->L;
            pack_head(queries, rows, P, s, s->queries, s->H, b, h, s->scale);
            pack_head(out, rows, P, s, outgoing, s->H, b, h, 0);
            zero(query_sums, size);
            for (index_t t = 0; t < s->L; t++)
                along[t] = dot(out + t * P, outputs + ((b * s->L + t) * s->H + h) * s->P, s->P);
            for (index_t past = 0; past < s->L; past += T) {
                const float *key = keys + past * P, *key_t = keys_t + past * P;
                const float *value_t = values_t + past * P;
                for (index_t first = past; first < s->L; first += T) {
                    int own = past == first;
                    index_t n = least(T, s->L - first), up = (n + 3) / 4 * 4;
                    const float *query = queries + first * P, *to = out + first * P;
                    product(weights, T, query, P, 1, key_t, T, up, T, P, 0, FULL);
                    product(slopes, T, to, P, 1, value_t, T, up, T, P, 0, FULL);
                    for (index_t i = 0; i < up; i++) {
                        float *restrict weight = weights + i * T, *restrict slope = slopes + i * T;
                        index_t end = i >= n ? 0 : own ? i + 1 : T;
                        if (end) {
                            float less = logarithm[first + i], mean = along[first + i];
                            exponentials(weight, less, T);
                            for (index_t j = 0; j < T; j++)
                                slope[j] = weight[j] * (slope[j] - mean);
                        }
                        zero(weight + end, T - end);
                        zero(slope + end, T - end);
                    }
                    int lower = own ? LOWER : FULL, upper = own ? UPPER : FULL;
                    product(value_sums + past * P, P, weights, 1, T, to, P, T, P, up, 1, upper);
                    product(key_sums + past * P, P, slopes, 1, T, query, P, T, P, up, 1, upper);
                    product(query_sums + first * P, P, slopes, T, 1, key, P, up, P, own ? up : T, 1,
                            lower);
                }
            }
            for (index_t t = 0; t < s->L; t++)
                turn_back(queries_gradient + ((b * s->L + t) * s->H + h) * s->P, query_sums + t * P,
                          s->cosine + t * s->P, s->sine + t * s->P, s->scale, s->P);
        }
        for (index_t t = 0; t < s->L; t++) {
            index_t at = ((b * s->L + t) * s->G + g) * s->P;
            turn_back(keys_gradient + at, key_sums + t * P, s->cosine + t * s->P,
                      s->sine + t * s->P, 1, s->P);
            memcpy(values_gradient + at, value_sums + t * P, (size_t)s->P * sizeof(float));
        }
        free(keys);
    }
}

/* ---- SwiGLU: silu(gate) * up ---- */

#define GATE_BLOCK 4096

void swiglu_forward(index_t n, const float *gate, const float *up, float *outputs) {
#pragma omp parallel for schedule(static) if (n > SMALL)
    for (index_t first = 0; first < n; first += GATE_BLOCK) {
        SUBNORMALS_ARE_ZERO;
        index_t end = least(n, first + GATE_BLOCK);
        for (index_t i = first; i < end; i++) outputs[i] = gate[i] * sigmoid(gate[i]) * up[i];
    }
}

void swiglu_backward(index_t n, const float *restrict gate, const float *restrict up,
                     const float *restrict outgoing, float *restrict gate_gradient,
                     float *restrict up_gradient) {
#pragma omp parallel for schedule(static) if (n > SMALL)
    for (index_t first = 0; first < n; first += GATE_BLOCK) {
        SUBNORMALS_ARE_ZERO;
        index_t end = least(n, first + GATE_BLOCK);
        for (index_t i = first; i < end; i++) {
            float z = gate[i], open = sigmoid(z);
            gate_gradient[i] = outgoing[i] * up[i] * open * (1.0f + z * (1.0f - open));
            up_gradient[i] = outgoing[i] * z * open;
        }
    }
}
