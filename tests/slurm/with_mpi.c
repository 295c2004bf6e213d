/* A program that uses MPI and earlybird: it calls MPI_Init before it joins a world, or after that, and sums its ranks by both. */
#include <earlybird.h>

#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static void must(eb_status status) {
  if (status != EB_OK) {
    eb_error error = {.size = sizeof error};
    eb_last_error(&error);
    fprintf(stderr, "%s\n", error.message);
    exit(1);
  }
}

static float sum_by_earlybird(void) {
  eb_world world;
  must(eb_world_from_env(NULL, &world));
  eb_world_info info = {.size = sizeof info};
  must(eb_world_get_info(world, &info));
  float sum = (float)info.rank;
  must(eb_world_all_reduce(world, &sum, 1, "f32", "sum", 30.0));
  must(eb_world_close(world));
  return sum;
}

int main(int count, char **words) {
  if (count != 2) {
    return 2;
  }
  const int is_before = strcmp(words[1], "before") == 0;
  float by_earlybird = is_before ? 0 : sum_by_earlybird();
  MPI_Init(NULL, NULL);
  int rank;
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  if (is_before) {
    by_earlybird = sum_by_earlybird();
  }
  float own = (float)rank, by_mpi;
  MPI_Allreduce(&own, &by_mpi, 1, MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD);
  MPI_Finalize();
  if (by_mpi != by_earlybird) {
    return 1;
  }
  if (rank == 0) {
    printf("both sum to %.0f\n", (double)by_mpi);
  }
  return 0;
}
