/* Synchronous collectives of MPI under the protocol of `earlybird bench`: one call after the other; the mean over ranks
 * of each call, then statistics over calls.
 *   mpicc -O2 mpi_collectives.c -o mpi_collectives
 *   mpirun -n 4 ./mpi_collectives OPERATION BYTES ITERATIONS
 * BYTES are those of what a rank contributes, or of each block. Prints one JSON object. */
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

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
        if (rank == 0) fprintf(stderr, "usage: mpi_collectives OPERATION BYTES ITERATIONS\n");
        MPI_Abort(MPI_COMM_WORLD, 2);
    }
    const char *operation = argv[1];
    long bytes = atol(argv[2]), iterations = atol(argv[3]), warmup = 10;
    int count = (int)(bytes / sizeof(unsigned));
    size_t all = (size_t)count * ranks + 1;
    unsigned *one = calloc(count + 1, sizeof *one), *out = calloc(count + 1, sizeof *out);
    unsigned *sent = calloc(all, sizeof *sent), *received = calloc(all, sizeof *received);
    double *mine = calloc(iterations, sizeof *mine), *mean = calloc(iterations, sizeof *mean);
    for (int i = 0; i < count; i++) one[i] = rank * 3 + i % 1021;
    for (size_t i = 0; i + 1 < all; i++) sent[i] = rank * 3 + i % 1021;
    /* Whether a rank sends a block to each rank. What is sent is written anew before each call, as `earlybird bench` does. */
    int blocks = !strcmp(operation, "scatter") || !strcmp(operation, "all_to_all") || !strcmp(operation, "reduce_scatter");
    MPI_Comm world = MPI_COMM_WORLD;
    for (long i = 0; i < warmup + iterations; i++) {
        unsigned *renewed = blocks ? sent : one;
        for (size_t at = 0, end = blocks ? all - 1 : (size_t)count; at < end; at++) renewed[at]++;
        double start = MPI_Wtime();
        if (!strcmp(operation, "broadcast")) MPI_Bcast(one, count, MPI_UNSIGNED, 0, world);
        else if (!strcmp(operation, "gather")) MPI_Gather(one, count, MPI_UNSIGNED, received, count, MPI_UNSIGNED, 0, world);
        else if (!strcmp(operation, "all_gather")) MPI_Allgather(one, count, MPI_UNSIGNED, received, count, MPI_UNSIGNED, world);
        else if (!strcmp(operation, "scatter")) MPI_Scatter(sent, count, MPI_UNSIGNED, one, count, MPI_UNSIGNED, 0, world);
        else if (!strcmp(operation, "all_to_all")) MPI_Alltoall(sent, count, MPI_UNSIGNED, received, count, MPI_UNSIGNED, world);
        else if (!strcmp(operation, "reduce")) MPI_Reduce(one, out, count, MPI_UNSIGNED, MPI_SUM, 0, world);
        else if (!strcmp(operation, "reduce_scatter")) MPI_Reduce_scatter_block(sent, out, count, MPI_UNSIGNED, MPI_SUM, world);
        else if (!strcmp(operation, "all_reduce")) MPI_Allreduce(one, out, count, MPI_UNSIGNED, MPI_SUM, world);
        else {
            if (rank == 0) fprintf(stderr, "mpi_collectives: no operation %s\n", operation);
            MPI_Abort(world, 2);
        }
        if (i >= warmup) mine[i - warmup] = (MPI_Wtime() - start) * 1e6;
    }
    MPI_Reduce(mine, mean, (int)iterations, MPI_DOUBLE, MPI_SUM, 0, world);
    if (rank == 0) {
        double sum = 0;
        for (long i = 0; i < iterations; i++) sum += mean[i] /= ranks;
        qsort(mean, iterations, sizeof *mean, by_value);
        printf("{\"op\":\"%s\",\"ranks\":%d,\"bytes\":%ld,\"iterations\":%ld,\"mean_us\":%.3f,\"p50_us\":%.3f,\"min_us\":%.3f}\n",
               operation, ranks, bytes, iterations, sum / iterations, mean[iterations / 2], mean[0]);
    }
    MPI_Finalize();
    return 0;
}
