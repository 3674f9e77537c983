/* Cross-entropy of rows of logits, and its gradient in their place. Part of kernels.c, which
   includes it. */

#define SUM_BLOCK 1024 /* numbers whose sum is taken in float; such sums are added in double */

/* `logits` (rows, V) of which the first `used` columns count; label -100 is of no loss. Losses and
   predictions are (rows) each. With `gradient` the logits become (softmax - label) * scale. */
void cross_entropy(index_t rows, index_t V, index_t used, float *logits, const index_t *labels,
                   int gradient, float scale, float *losses, index_t *predictions) {
#pragma omp parallel for schedule(static) if (rows * V > SMALL)
    for (index_t r = 0; r < rows; r++) {
        SUBNORMALS_ARE_ZERO;
        float *restrict row = logits + r * V, most;
        index_t whole = used / LANES * LANES, best = 0, label = labels[r];
        most = largest(row, whole);
        for (index_t i = whole; i < used; i++) most = row[i] > most ? row[i] : most;
        while (best < used - 1 && row[best] != most) best++;
        predictions[r] = best;
        float own = label < 0 ? 0 : row[label];
        double sum = 0;
        for (index_t first = 0; first < used; first += SUM_BLOCK) {
            index_t n = least(SUM_BLOCK, used - first), even = n / LANES * LANES;
            exponentials(row + first, most, n);
            float part = sum_of(row + first, even);
            for (index_t i = even; i < n; i++) part += row[first + i];
            sum += part;
        }
        losses[r] = label < 0 ? 0 : (float)log(sum) + (most - own);
        if (!gradient) continue;
        if (label < 0) {
            zero(row, V);
            continue;
        }
        float share = (float)(scale / sum);
        for (index_t i = 0; i < used; i++) row[i] *= share;
        row[label] -= scale;
        zero(row + used, V - used);
    }
}
