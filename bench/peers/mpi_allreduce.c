/* MPI_Allreduce under the protocol of `earlybird bench`: a barrier, rank r sleeps r steps, then the timed call; without
 * steps one call after the other.
 * Latency: mean over ranks per iteration, then statistics over iterations.
 *   mpicc -O2 mpi_allreduce.c -o mpi_allreduce
 *   mpirun -n 32 --oversubscribe ./mpi_allreduce BYTES STEP_US ITERATIONS
 * Prints one JSON object. */
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

static int by_value(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

int main(int argc, char **argv) {
    MPI_Init(&argc, &argv);
    int rank, ranks;
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &ranks);
    if (argc != 4) {
        if (rank == 0) fprintf(stderr, "usage: mpi_allreduce BYTES STEP_US ITERATIONS\n");
        MPI_Abort(MPI_COMM_WORLD, 2);
    }
    long bytes = atol(argv[1]), step = atol(argv[2]), iterations = atol(argv[3]), warmup = 5;
    int count = (int)(bytes / sizeof(float));
    float *in = calloc(count + 1, sizeof *in), *out = calloc(count + 1, sizeof *out);
    double *mine = calloc(iterations, sizeof *mine), *mean = calloc(iterations, sizeof *mean);
    for (int i = 0; i < count; i++) in[i] = (float)(rank + i % 32);
    for (long i = 0; i < warmup + iterations; i++) {
        if (step) {
            MPI_Barrier(MPI_COMM_WORLD);
            long late = step * rank;
            struct timespec pause = {late / 1000000, late % 1000000 * 1000};
            nanosleep(&pause, NULL);
        }
        double start = MPI_Wtime();
        MPI_Allreduce(in, out, count, MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD);
        if (i >= warmup) mine[i - warmup] = (MPI_Wtime() - start) * 1e6;
    }
    MPI_Reduce(mine, mean, (int)iterations, MPI_DOUBLE, MPI_SUM, 0, MPI_COMM_WORLD);
    if (rank == 0) {
        double sum = 0;
        for (long i = 0; i < iterations; i++) sum += mean[i] /= ranks;
        qsort(mean, iterations, sizeof *mean, by_value);
        printf("{\"ranks\":%d,\"bytes\":%ld,\"step_us\":%ld,\"iterations\":%ld,\"mean_us\":%.2f,\"p50_us\":%.2f,\"min_us\":%.2f}\n", ranks, bytes,
               step, iterations, sum / iterations, mean[iterations / 2], mean[0]);
    }
    MPI_Finalize();
    return 0;
}
