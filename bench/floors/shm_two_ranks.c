/* The cost of a two-rank allreduce over shared memory without a library: two pinned processes on bare pages.
 * Each rank sums one half of two vectors into both outcomes; the ranks meet before and after. For 8 bytes a rank writes its
 * number and a sequence number into one cache line, and polls the other's.
 *   cc -O3 -march=native shm_two_ranks.c -o floor && ./floor          one JSON object a size, microseconds */
#define _GNU_SOURCE
#include <sched.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

enum { LARGEST = 16 << 20, ROUNDS_SMALL = 20000 };

struct post { _Alignas(128) _Atomic long turn; double number; };
struct shared { struct post posts[4][2], doors[3][2]; };

static double microseconds(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return 1e6 * (double)now.tv_sec + 1e-3 * (double)now.tv_nsec;
}

static int ascending(const void *a, const void *b) { return (*(const double *)a > *(const double *)b) - (*(const double *)a < *(const double *)b); }

static void meet(struct post *door, int me, long turn) {
    atomic_store_explicit(&door[me].turn, turn, memory_order_release);
    while (atomic_load_explicit(&door[1 - me].turn, memory_order_acquire) < turn) __builtin_ia32_pause();
}

static void print(size_t bytes, double *times, int count) {
    qsort(times, (size_t)count, sizeof *times, ascending);
    printf("{\"bytes\":%zu,\"p50_us\":%.3f,\"min_us\":%.3f}\n", bytes, times[count / 2], times[0]);
}

int main(void) {
    size_t size = sizeof(struct shared) + 4 * (size_t)LARGEST + 4096;
    char *memory = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED) return perror("mmap"), 1;
    struct shared *shared = (struct shared *)memory;
    float *vectors = (float *)(memory + (sizeof *shared + 4095) / 4096 * 4096);
    for (size_t i = 0; i < LARGEST; i++) vectors[i] = (float)(i % 32); /* all four vectors; also takes the page faults */
    pid_t child = fork();
    int me = child == 0;
    cpu_set_t core;
    CPU_ZERO(&core);
    CPU_SET(me, &core);
    sched_setaffinity(0, sizeof core, &core);

    static double times[ROUNDS_SMALL];
    volatile double sink;
    for (long turn = 1; turn <= ROUNDS_SMALL; turn++) {
        struct post *line = shared->posts[turn % 4];
        double start = microseconds();
        line[me].number = (double)me;
        atomic_store_explicit(&line[me].turn, turn, memory_order_release);
        while (atomic_load_explicit(&line[1 - me].turn, memory_order_acquire) != turn) __builtin_ia32_pause();
        sink = line[0].number + line[1].number;
        times[turn - 1] = microseconds() - start;
    }
    (void)sink;
    if (!me) print(8, times, ROUNDS_SMALL);

    long turn = 0;
    size_t sizes[] = {4096, 65536, 1 << 20, 16 << 20};
    for (int s = 0; s < 4; s++) {
        size_t half = sizes[s] / 2 / sizeof(float), stride = LARGEST / sizeof(float);
        int rounds = sizes[s] > (1 << 20) ? 40 : 400;
        for (int round = 0; round < rounds; round++) {
            meet(shared->doors[0], me, ++turn);
            double start = microseconds();
            meet(shared->doors[1], me, turn);
            const float *a = vectors + me * half, *b = a + stride;
            float *first = vectors + 2 * stride + me * half, *second = first + stride;
            for (size_t i = 0; i < half; i++) first[i] = second[i] = a[i] + b[i];
            meet(shared->doors[2], me, turn);
            times[round] = microseconds() - start;
        }
        if (!me) print(sizes[s], times, rounds);
    }
    if (me) _exit(0);
    waitpid(child, NULL, 0);
    return 0;
}
