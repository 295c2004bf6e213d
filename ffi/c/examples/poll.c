/* A program with an event loop: it waits for an outcome and for other things at once.
 *
 * The helper thread of the library makes progress while this program sleeps in poll(2).
 *
 *   cc poll.c $(pkg-config --cflags --libs earlybird) -o poll
 *   earlybird run -n 2 -- ./poll
 */
#include <earlybird.h>

#include <poll.h>
#include <stdio.h>
#include <stdlib.h>

#define STEPS 10

static void must(eb_status status) {
  if (status != EB_OK) {
    eb_error error = {.size = sizeof error};
    eb_last_error(&error);
    fprintf(stderr, "%s\n", error.message);
    exit(1);
  }
}

int main(void) {
  eb_world world;
  must(eb_world_from_env(NULL, &world));
  eb_world_info info = {.size = sizeof info};
  must(eb_world_get_info(world, &info));
  const size_t lengths[] = {3, 5};
  eb_allreduce_options options = {
      .size = sizeof options, .lengths = lengths, .tensors = 2, .dtype = "i64", .executor = "thread"};
  eb_allreduce sum;
  must(eb_allreduce_create(world, &options, &sum));
  int fd;
  must(eb_allreduce_completion_fd(sum, &fd));

  for (int step = 1; step <= STEPS; step++) {
    void *data;
    size_t bytes;
    must(eb_allreduce_contribution(sum, &data, &bytes));
    int64_t *values = data;
    for (size_t i = 0; i < bytes / sizeof *values; i++) {
      values[i] = step;
    }
    must(eb_allreduce_arrive(sum));

    size_t outcomes = 0;
    while (outcomes == 0) {
      /* Sockets, pipes and timers of the program would stand beside it. */
      struct pollfd waited = {.fd = fd, .events = POLLIN};
      if (poll(&waited, 1, 30000) != 1) {
        fprintf(stderr, "no outcome within 30 s\n");
        return 1;
      }
      must(eb_allreduce_try_wait(sum, &outcomes));
    }
    eb_outcome outcome = {.size = sizeof outcome};
    must(eb_allreduce_outcome(sum, outcomes - 1, &outcome));
    const int64_t *found = outcome.data;
    if (found[7] != (int64_t)step * info.ranks) {
      fprintf(stderr, "step %d: %lld\n", step, (long long)found[7]);
      return 1;
    }
  }
  must(eb_allreduce_finish(sum, 30));
  must(eb_allreduce_destroy(sum));
  must(eb_world_close(world));
  printf("rank %u of %u: %d sums\n", (unsigned)info.rank, (unsigned)info.ranks, STEPS);
  return 0;
}
