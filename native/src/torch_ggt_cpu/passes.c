/* The two passes over a window on a CPU, in one reading of the rows each:

       measure   W v and v·v     what a Gram matrix needs to know of a row
       expand    Wᵀ c            a step

   Sums are in double, whatever the rows are: rows of float, of bfloat16, or of small integers with a scale for each 64
   columns (torch_ggt/formats.py). Plain torch writes the widened rows to memory and reads them again; here they are
   widened in registers.

   A pass works on a run of columns that fits into the second cache, and on four rows at a time: four long streams are
   what a processor fetches ahead. The loops are plain C. The compiler makes vectors of them, once for each generation of
   processors, and the loader chooses. Sums may be added in any order, but numbers that are not finite count
   (-fassociative-math, and never -ffast-math).

   The columns are cut into one run for each thread, and sums are added in the order of the runs: a result depends on the
   number of threads that was asked for, and on nothing else. */

#include <stdint.h>
#include <string.h>

enum { BLOCK = 64, WIDTH = 32768, NEAR = 256, ROWS = 4 }; /* columns: of a scale, of a run, in the first cache; rows */
enum { FLOAT32, BFLOAT16, INT8, INT4 };

typedef struct {
    int format, threads, add;
    const char *rows;
    const float *scales;
    long stride, scale_stride, size, columns; /* strides in elements of the rows and of the scales */
    const float *row;
    const double *coefficients;
    double *sums;
    float *out;
} Job;

#define INLINE static inline __attribute__((always_inline))
#if defined(__x86_64__) && defined(__GLIBC__) && !defined(__clang__) && __GNUC__ >= 12
#define CLONES __attribute__((target_clones("default", "arch=x86-64-v3", "arch=x86-64-v4")))
#else
#define CLONES /* the processors that the compiler's own flags name */
#endif

INLINE long least(long a, long b) { return a < b ? a : b; }

INLINE double of_bfloat16(uint16_t upper_half) {
    uint32_t bits = (uint32_t)upper_half << 16;
    float number;
    memcpy(&number, &bits, sizeof number);
    return number;
}

/* Four rows p, p + stride, …: their products with v, added to sums; and c₀ p + c₁ (p + stride) + …, added to u. */
#define FOUR_ROWS(NAME, TYPE, NUMBER)                                                                                  \
    INLINE void products_of_##NAME(const TYPE *p, long stride, const double *v, long n, double *sums) {                \
        const TYPE *q = p + stride, *r = q + stride, *s = r + stride;                                                  \
        double a = 0, b = 0, c = 0, d = 0;                                                                             \
        for (long j = 0; j < n; j++) {                                                                                 \
            a += NUMBER(p[j]) * v[j];                                                                                  \
            b += NUMBER(q[j]) * v[j];                                                                                  \
            c += NUMBER(r[j]) * v[j];                                                                                  \
            d += NUMBER(s[j]) * v[j];                                                                                  \
        }                                                                                                              \
        sums[0] += a, sums[1] += b, sums[2] += c, sums[3] += d;                                                        \
    }                                                                                                                  \
    INLINE void add_##NAME(const TYPE *p, long stride, const double *c, long n, double *restrict u) {                  \
        const TYPE *q = p + stride, *r = q + stride, *s = r + stride;                                                  \
        for (long j = 0; j < n; j++)                                                                                   \
            u[j] += c[0] * NUMBER(p[j]) + c[1] * NUMBER(q[j]) + c[2] * NUMBER(r[j]) + c[3] * NUMBER(s[j]);             \
    }
FOUR_ROWS(singles, float, (double))
FOUR_ROWS(doubles, double, )
FOUR_ROWS(bfloats, uint16_t, of_bfloat16)

/* Columns of one row as doubles. */
INLINE void read(const Job *w, int format, long row, long left, long n, double *restrict out) {
    long at = row * w->stride + left;
    if (format == FLOAT32)
        for (long j = 0; j < n; j++) out[j] = ((const float *)w->rows)[at + j];
    else if (format == BFLOAT16)
        for (long j = 0; j < n; j++) out[j] = of_bfloat16(((const uint16_t *)w->rows)[at + j]);
    else
        for (long b = 0; b < n; b += BLOCK, out += BLOCK) {
            double scale = w->scales[row * w->scale_stride + (left + b) / BLOCK];
            if (format == INT8) { /* s·i·|i| */
                const int8_t *p = (const int8_t *)w->rows + at + b;
                for (int j = 0; j < BLOCK; j++) out[j] = scale * (p[j] * (p[j] < 0 ? -p[j] : p[j]));
            } else { /* s·i³; the first half of a block is in the low halves of its bytes */
                const uint8_t *p = (const uint8_t *)w->rows + row * w->stride + (left + b) / 2;
                for (int j = 0; j < BLOCK / 2; j++) {
                    int low = (p[j] & 15) - 8, high = (p[j] >> 4) - 8;
                    out[j] = scale * (low * low * low);
                    out[j + BLOCK / 2] = scale * (high * high * high);
                }
            }
        }
}

/* Up to four rows as doubles, zeros in the place of those that are not there. */
INLINE void read_four(const Job *w, int format, long first, long left, long n, double *near) {
    for (long k = 0; k < ROWS; k++)
        if (first + k < w->size)
            read(w, format, first + k, left, n, near + k * NEAR);
        else
            memset(near + k * NEAR, 0, n * sizeof *near);
}

INLINE void measure(const Job *w, int format, long left, long right, double *sums) {
    double v[WIDTH], near[ROWS * NEAR];
    memset(sums, 0, (w->size + 1) * sizeof *sums);
    for (long at = left; at < right; at += WIDTH) {
        long n = least(right - at, WIDTH), stride = w->stride;
        double square = 0;
        for (long j = 0; j < n; j++) {
            v[j] = w->row[at + j];
            square += v[j] * v[j];
        }
        sums[w->size] += square;
        for (long i = 0; i < w->size; i += ROWS) {
            double four[ROWS] = {0};
            if (format == FLOAT32 && i + ROWS <= w->size)
                products_of_singles((const float *)w->rows + i * stride + at, stride, v, n, four);
            else if (format == BFLOAT16 && i + ROWS <= w->size)
                products_of_bfloats((const uint16_t *)w->rows + i * stride + at, stride, v, n, four);
            else
                for (long j = 0; j < n; j += NEAR) {
                    read_four(w, format, i, at + j, least(n - j, NEAR), near);
                    products_of_doubles(near, NEAR, v + j, least(n - j, NEAR), four);
                }
            for (long k = 0; k < least(w->size - i, ROWS); k++) sums[i + k] += four[k];
        }
    }
}

INLINE void expand(const Job *w, int format, long left, long right) {
    double u[WIDTH], near[ROWS * NEAR];
    for (long at = left; at < right; at += WIDTH) {
        long n = least(right - at, WIDTH), stride = w->stride;
        for (long j = 0; j < n; j++) u[j] = w->add ? w->out[at + j] : 0;
        for (long i = 0; i < w->size; i += ROWS) {
            double c[ROWS] = {0};
            memcpy(c, w->coefficients + i, least(w->size - i, ROWS) * sizeof *c);
            if (format == FLOAT32 && i + ROWS <= w->size)
                add_singles((const float *)w->rows + i * stride + at, stride, c, n, u);
            else if (format == BFLOAT16 && i + ROWS <= w->size)
                add_bfloats((const uint16_t *)w->rows + i * stride + at, stride, c, n, u);
            else
                for (long j = 0; j < n; j += NEAR) {
                    read_four(w, format, i, at + j, least(n - j, NEAR), near);
                    add_doubles(near, NEAR, c, least(n - j, NEAR), u + j);
                }
        }
        for (long j = 0; j < n; j++) w->out[at + j] = (float)u[j];
    }
}

#define FOR_FORMAT(NAME, FORMAT)                                                                                       \
    CLONES static void measure_##NAME(const Job *w, long left, long right, double *sums) {                             \
        measure(w, FORMAT, left, right, sums);                                                                         \
    }                                                                                                                  \
    CLONES static void expand_##NAME(const Job *w, long left, long right) { expand(w, FORMAT, left, right); }
FOR_FORMAT(float32, FLOAT32)
FOR_FORMAT(bfloat16, BFLOAT16)
FOR_FORMAT(int8, INT8)
FOR_FORMAT(int4, INT4)

static void (*const MEASURES[])(const Job *, long, long, double *) = {measure_float32, measure_bfloat16, measure_int8,
                                                                      measure_int4};
static void (*const EXPANDS[])(const Job *, long, long) = {expand_float32, expand_bfloat16, expand_int8, expand_int4};

/* The threads are those of the OpenMP that torch has brought along: a second OpenMP would fight with it for the cores.
   So nothing is linked, and where these names are not there, one thread does all. */
extern void GOMP_parallel(void (*)(void *), void *, unsigned, unsigned) __attribute__((weak));
extern int omp_get_thread_num(void) __attribute__((weak));
extern int omp_get_num_threads(void) __attribute__((weak));

static void work(void *data) {
    const Job *w = data;
    long step = w->threads > 1 ? omp_get_num_threads() : 1;
    long blocks = (w->columns + BLOCK - 1) / BLOCK;
    for (long k = w->threads > 1 ? omp_get_thread_num() : 0; k < w->threads; k += step) { /* fewer may have come */
        long left = blocks * k / w->threads * BLOCK, right = least(blocks * (k + 1) / w->threads * BLOCK, w->columns);
        if (w->sums)
            MEASURES[w->format](w, left, right, w->sums + k * (w->size + 1));
        else
            EXPANDS[w->format](w, left, right);
    }
}

static void run(Job *w) {
    if (w->threads > 1 && GOMP_parallel && omp_get_thread_num && omp_get_num_threads) {
        GOMP_parallel(work, w, (unsigned)w->threads, 0);
    } else {
        w->threads = 1;
        work(w);
    }
}

/* (W v, v·v) into sums[0 … size]; sums has room for threads · (size + 1) numbers. */
void torch_ggt_measure(int format, const void *rows, const float *scales, long stride, long scale_stride, long size,
                       long columns, int threads, const float *row, double *sums) {
    Job w = {.format = format, .threads = threads, .rows = rows, .scales = scales, .stride = stride, .size = size,
             .scale_stride = scale_stride, .columns = columns, .row = row, .sums = sums};
    run(&w);
    for (long k = 1; k < w.threads; k++)
        for (long i = 0; i <= size; i++) sums[i] += sums[k * (size + 1) + i];
}

/* Wᵀ c into out, or added to it. */
void torch_ggt_expand(int format, const void *rows, const float *scales, long stride, long scale_stride, long size,
                      long columns, int threads, const double *coefficients, float *out, int add) {
    Job w = {.format = format, .threads = threads, .rows = rows, .scales = scales, .stride = stride, .size = size,
             .scale_stride = scale_stride, .columns = columns, .coefficients = coefficients, .out = out, .add = add};
    run(&w);
}
