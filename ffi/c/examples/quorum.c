/* Ranks that need not wait for the slowest one.
 *
 * Each rank adds ones to a vector, 20 times. A round fires when half of the ranks have arrived; a late contribution enters
 * the next round, so nothing is lost, and the cut of each round says whose data it has.
 *
 *   cc quorum.c $(pkg-config --cflags --libs earlybird) -o quorum
 *   earlybird run -n 4 -- ./quorum
 */
#include <earlybird.h>

#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#define LENGTH 1000
#define STEPS 20
#define SECONDS 30.0

/* Says what failed, and where; the other ranks learn that this one has ended. */
static void must(eb_status status) {
  if (status == EB_OK) {
    return;
  }
  eb_error error = {.size = sizeof error};
  eb_last_error(&error);
  fprintf(stderr, "%s: %s\n", eb_strerror((int)status), error.message);
  exit(1);
}

static void compute(uint32_t milliseconds) {
  struct timespec time = {.tv_sec = 0, .tv_nsec = (long)milliseconds * 1000000};
  nanosleep(&time, NULL);
}

/* Adds outcomes up, and counts contributions that were late. */
static void add(eb_allreduce sum, size_t outcomes, float *total, uint64_t *late) {
  for (size_t i = 0; i < outcomes; i++) {
    eb_outcome outcome = {.size = sizeof outcome};
    must(eb_allreduce_outcome(sum, i, &outcome));
    const float *found = outcome.data;
    if (found[0] != (float)(outcome.fresh + outcome.carried) || found[LENGTH - 1] != found[0]) {
      fprintf(stderr, "round %llu: %f of %u contributions\n", (unsigned long long)outcome.round, (double)found[0],
              (unsigned)(outcome.fresh + outcome.carried));
      exit(1);
    }
    *total += found[0];
    *late += outcome.carried;
  }
}

int main(void) {
  eb_world world;
  must(eb_world_from_env(NULL, &world));
  eb_world_info info = {.size = sizeof info};
  must(eb_world_get_info(world, &info));

  const size_t length = LENGTH;
  char quorum[32];
  snprintf(quorum, sizeof quorum, "quorum=%u", (unsigned)((info.ranks + 1) / 2));
  eb_allreduce_options options = {.size = sizeof options, .lengths = &length, .tensors = 1, .dtype = "f32", .fire = quorum};
  eb_allreduce sum;
  must(eb_allreduce_create(world, &options, &sum));

  float total = 0;
  uint64_t late = 0;
  for (int step = 0; step < STEPS; step++) {
    /* The last rank is slow. */
    compute(info.ranks > 1 && info.rank + 1 == info.ranks ? 5 : 1);
    void *data;
    must(eb_allreduce_contribution(sum, &data, NULL));
    float *values = data;
    for (int i = 0; i < LENGTH; i++) {
      values[i] = 1;
    }
    must(eb_allreduce_arrive(sum));

    size_t outcomes;
    must(eb_allreduce_wait(sum, SECONDS, &outcomes));
    add(sum, outcomes, &total, &late);
  }
  /* What this rank handed in late is in outcomes that it has not taken. */
  for (size_t outcomes = 1; outcomes > 0;) {
    must(eb_allreduce_leave(sum, SECONDS, &outcomes));
    add(sum, outcomes, &total, &late);
  }
  must(eb_allreduce_destroy(sum));
  must(eb_world_close(world));
  printf("rank %u of %u: saw %.0f contributions, %llu of them late\n", (unsigned)info.rank, (unsigned)info.ranks,
         (double)total, (unsigned long long)late);
  return 0;
}
