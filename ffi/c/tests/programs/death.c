/* A rank dies in the middle of a run: the others are told which one, wherever they wait. */
#include <earlybird.h>

#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

int main(int argc, char **argv) {
  int polls = argc > 1 && argv[1][0] == 'p';
  eb_world world;
  eb_world_info info = {.size = sizeof info};
  const size_t length = 100;
  eb_allreduce_options options = {
      .size = sizeof options, .lengths = &length, .tensors = 1, .executor = polls ? "thread" : "caller"};
  eb_allreduce sum;
  if (eb_world_from_env(NULL, &world) || eb_world_get_info(world, &info) || eb_allreduce_create(world, &options, &sum)) {
    return 1;
  }
  int fd = -1;
  if (polls && eb_allreduce_completion_fd(sum, &fd)) {
    return 1;
  }
  for (int step = 0; step < 100000; step++) {
    if (info.rank == 1 && step == 50) {
      abort();
    }
    size_t outcomes = 0;
    eb_status status = eb_allreduce_arrive(sum);
    while (status == EB_OK && outcomes == 0) {
      struct pollfd waited = {.fd = fd, .events = POLLIN};
      if (polls && poll(&waited, 1, 20000) != 1) {
        fprintf(stderr, "rank %u: the descriptor says nothing of the death\n", (unsigned)info.rank);
        return 1;
      }
      status = polls ? eb_allreduce_try_wait(sum, &outcomes) : eb_allreduce_wait(sum, 20, &outcomes);
    }
    if (status != EB_OK) {
      eb_error error = {.size = sizeof error};
      eb_last_error(&error);
      printf("rank %u: %d, peer %d: %s\n", (unsigned)info.rank, (int)status, (int)error.peer, error.message);
      /* What has failed stays failed, in every call. */
      const eb_status again[] = {
          eb_allreduce_arrive(sum),          eb_allreduce_wait(sum, 1, &outcomes), eb_allreduce_try_wait(sum, &outcomes),
          eb_allreduce_finish(sum, 1),       eb_allreduce_finish(sum, 1),          eb_allreduce_wait(sum, 1, &outcomes),
          eb_world_barrier(world, 1)};
      for (size_t i = 0; i < sizeof again / sizeof *again; i++) {
        if (again[i] != status) {
          fprintf(stderr, "rank %u: call %zu after the death: %d\n", (unsigned)info.rank, i, (int)again[i]);
          return 1;
        }
      }
      eb_allreduce_destroy(sum);
      eb_world_close(world);
      return status == EB_PEER_DIED && error.peer == 1 ? 0 : 1;
    }
  }
  return 1;
}
