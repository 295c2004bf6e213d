/* Calls that are wrong: each one is an error that says so, and no crash. */
#include <earlybird.h>

#include <math.h>
#include <poll.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

static int failures = 0;

static void expect(int line, eb_status found, eb_status expected, const char *words) {
  eb_error error = {.size = sizeof error};
  eb_last_error(&error);
  if (found != expected) {
    fprintf(stderr, "line %d: %s (%s), not %s\n", line, eb_strerror((int)found), error.message, eb_strerror((int)expected));
    failures++;
  } else if (found != EB_OK && (error.status != found || strstr(error.message, words) == NULL)) {
    fprintf(stderr, "line %d: \"%s\" lacks \"%s\"\n", line, error.message, words);
    failures++;
  }
}

#define EXPECT(call, status, words) expect(__LINE__, (call), (status), (words))
#define OK(call) expect(__LINE__, (call), EB_OK, "")

struct shared {
  eb_allreduce sum;
  pthread_barrier_t begun;
  eb_status waited;
};

/* Waits for another rank that does not come, so that the handle is in use for a while. */
static void *wait_in_vain(void *given) {
  struct shared *shared = given;
  size_t outcomes;
  pthread_barrier_wait(&shared->begun);
  shared->waited = eb_allreduce_wait(shared->sum, 0.5, &outcomes);
  return NULL;
}

static void alone(eb_world world) {
  eb_world wrong[] = {{0}, {1}, {UINT64_MAX}, {world.id + 1}, {world.id ^ (1ull << 40)}};
  for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
    EXPECT(eb_world_barrier(wrong[i], 1), EB_HANDLE, "no world");
    EXPECT(eb_world_close(wrong[i]), EB_HANDLE, "no world");
  }
  EXPECT(eb_world_from_env(NULL, NULL), EB_ARGUMENT, "world is NULL");
  eb_world other;
  eb_config config = {.size = sizeof config, .fabric = "carrier pigeons"};
  EXPECT(eb_world_from_env(&config, &other), EB_ARGUMENT, "config.fabric");
  config = (eb_config){.size = 3};
  EXPECT(eb_world_from_env(&config, &other), EB_ARGUMENT, "sizeof");
  config = (eb_config){.size = sizeof config, .deadline = -1};
  EXPECT(eb_world_from_env(&config, &other), EB_ARGUMENT, "config.deadline is -1");
  config = (eb_config){.size = sizeof config, .secret = "\xff\xfe"};
  EXPECT(eb_world_from_env(&config, &other), EB_ARGUMENT, "not text");
  config = (eb_config){.size = sizeof config, .hw_config = "/no/such/file"};
  EXPECT(eb_world_from_env(&config, &other), EB_CONFIG, "/no/such/file");
  EXPECT(eb_world_join(0, 1, NULL, NULL, &other), EB_ARGUMENT, "store is NULL");
  EXPECT(eb_world_join(0, 1, "unix:misuse", NULL, NULL), EB_ARGUMENT, "world is NULL");
  EXPECT(eb_world_join(1, 1, "unix:misuse", NULL, &other), EB_CONFIG, "rank");
  EXPECT(eb_world_join(0, 2, "pigeons", NULL, &other), EB_CONFIG, "pigeons");
  EXPECT(eb_world_split(world, 0, 0, NULL), EB_ARGUMENT, "group is NULL");
  EXPECT(eb_world_get_info(world, NULL), EB_ARGUMENT, "info is NULL");
  EXPECT(eb_world_barrier(world, NAN), EB_ARGUMENT, "timeout is NaN");
  EXPECT(eb_world_barrier(world, -0.5), EB_ARGUMENT, "timeout is -0.5");
  OK(eb_world_barrier(world, INFINITY));
  EXPECT(eb_world_broadcast(world, NULL, 8, 0, 1), EB_ARGUMENT, "data is NULL");
  EXPECT(eb_world_broadcast(world, &other, 8, 7, 1), EB_USAGE, "not a rank");
  OK(eb_world_broadcast(world, NULL, 0, 0, 1));
  float numbers[8] = {0};
  uint32_t rank;
  EXPECT(eb_world_all_gather(world, numbers, sizeof numbers, numbers, 1), EB_ARGUMENT, "mine and all overlap");
  EXPECT(eb_world_all_gather(world, NULL, 4, numbers, 1), EB_ARGUMENT, "mine is NULL");
  EXPECT(eb_world_all_gather(world, numbers, SIZE_MAX, numbers, 1), EB_ARGUMENT, "");
  EXPECT(eb_world_gather(world, numbers, 4, NULL, 0, 1), EB_ARGUMENT, "all is NULL");
  EXPECT(eb_world_scatter(world, NULL, numbers, 4, 0, 1), EB_ARGUMENT, "all is NULL");
  EXPECT(eb_world_gather(world, numbers, 4, numbers + 4, 9, 1), EB_ARGUMENT, "only the root has all");
  EXPECT(eb_world_gather(world, numbers, 4, NULL, 9, 1), EB_USAGE, "not a rank");
  EXPECT(eb_world_all_to_all_of(world, numbers, NULL, numbers + 4, NULL, 1), EB_ARGUMENT, "sent_bytes is NULL");
  const size_t far_too_many[] = {SIZE_MAX}, four[] = {4};
  EXPECT(eb_world_all_to_all_of(world, numbers, far_too_many, numbers + 4, four, 1), EB_ARGUMENT, "addressed");
  EXPECT(eb_world_all_reduce(world, numbers, 8, "f31", NULL, 1), EB_ARGUMENT, "dtype");
  EXPECT(eb_world_all_reduce(world, numbers, 8, NULL, "median", 1), EB_ARGUMENT, "reduce");
  EXPECT(eb_world_all_reduce(world, numbers, SIZE_MAX, "f64", NULL, 1), EB_ARGUMENT, "addressed");
  EXPECT(eb_world_all_reduce(world, (char *)numbers + 1, 4, NULL, NULL, 1), EB_USAGE, "not aligned");
  EXPECT(eb_world_reduce(world, numbers, numbers, 8, NULL, NULL, 0, 1), EB_ARGUMENT, "mine and result overlap");
  EXPECT(eb_world_reduce_scatter(world, NULL, numbers, 8, NULL, NULL, 1), EB_ARGUMENT, "all is NULL");
  EXPECT(eb_world_send(world, numbers, 4, 0, 0, 1), EB_USAGE, "another rank");
  EXPECT(eb_world_receive(world, numbers, 4, 5, 0, 1), EB_USAGE, "another rank");
  EXPECT(eb_world_receive_any(world, numbers, 4, 0, &rank, 1), EB_USAGE, "no other rank");
  EXPECT(eb_world_all_gather((eb_world){0}, numbers, 4, numbers + 4, 1), EB_HANDLE, "no world");
  OK(eb_world_all_reduce(world, NULL, 0, NULL, NULL, 1));
  if (eb_last_error(NULL) != EB_ARGUMENT || eb_strerror(-5) == NULL || eb_strerror(99999) == NULL) {
    failures++;
  }

  const size_t lengths[] = {4, 2};
  eb_allreduce sum;
  eb_allreduce_options options = {.size = sizeof options, .lengths = lengths, .tensors = 2};
  EXPECT(eb_allreduce_create(world, NULL, &sum), EB_ARGUMENT, "options is NULL");
  EXPECT(eb_allreduce_create(world, &options, NULL), EB_ARGUMENT, "allreduce is NULL");
  eb_allreduce_options wrong_options = options;
  wrong_options.lengths = NULL;
  EXPECT(eb_allreduce_create(world, &wrong_options, &sum), EB_ARGUMENT, "options.lengths is NULL");
  wrong_options = options;
  wrong_options.dtype = "f31";
  EXPECT(eb_allreduce_create(world, &wrong_options, &sum), EB_ARGUMENT, "options.dtype");
  wrong_options = options;
  wrong_options.fire = "quorum=0";
  EXPECT(eb_allreduce_create(world, &wrong_options, &sum), EB_CONFIG, "quorum of 0");
  wrong_options = options;
  wrong_options.preset = "wagma";
  EXPECT(eb_allreduce_create(world, &wrong_options, &sum), EB_USAGE, "a model");
  float model[6] = {0};
  wrong_options.model = model;
  wrong_options.model_bytes = sizeof model - 1;
  EXPECT(eb_allreduce_create(world, &wrong_options, &sum), EB_USAGE, "as long as all tensors");
  const size_t huge[] = {SIZE_MAX, SIZE_MAX};
  wrong_options = options;
  wrong_options.lengths = huge;
  EXPECT(eb_allreduce_create(world, &wrong_options, &sum), EB_USAGE, "more elements than can be addressed");
  struct {
    eb_allreduce_options known;
    uint64_t later;
  } later = {.known = options, .later = 1};
  later.known.size = sizeof later;
  EXPECT(eb_allreduce_create(world, &later.known, &sum), EB_ARGUMENT, "does not know");

  /* A field that is 0 is a default, in a longer structure, too. */
  later.later = 0;
  OK(eb_allreduce_create(world, &later.known, &sum));
  size_t outcomes = 77, bytes = 0, count = 0;
  void *data = NULL;
  EXPECT(eb_allreduce_wait(sum, 1, &outcomes), EB_USAGE, "call arrive first");
  EXPECT(eb_allreduce_wait(sum, 1, NULL), EB_ARGUMENT, "outcomes is NULL");
  EXPECT(eb_allreduce_contribution(sum, NULL, &bytes), EB_ARGUMENT, "data is NULL");
  EXPECT(eb_allreduce_weigh(sum, 3), EB_USAGE, "no weights");
  OK(eb_allreduce_contribution(sum, &data, &bytes));
  if (bytes != sizeof model || outcomes != 77) {
    failures++;
  }
  memset(data, 0, bytes);
  OK(eb_allreduce_arrive(sum));
  EXPECT(eb_allreduce_arrive(sum), EB_USAGE, "call wait or try_wait first");
  OK(eb_allreduce_wait(sum, INFINITY, &outcomes));
  eb_outcome outcome = {.size = sizeof outcome};
  EXPECT(eb_allreduce_outcome(sum, 1, &outcome), EB_ARGUMENT, "no outcome of number 1");
  EXPECT(eb_allreduce_outcome(sum, SIZE_MAX, &outcome), EB_ARGUMENT, "no outcome");
  EXPECT(eb_allreduce_outcome(sum, 0, NULL), EB_ARGUMENT, "outcome is NULL");
  OK(eb_allreduce_outcome(sum, 0, &outcome));
  /* A call that is refused does nothing: what the caller holds stays. */
  EXPECT(eb_allreduce_wait(sum, 1, &outcomes), EB_USAGE, "call arrive first");
  EXPECT(eb_allreduce_try_wait(sum, &outcomes), EB_USAGE, "call arrive first");
  OK(eb_allreduce_outcome(sum, 0, &outcome));
  EXPECT(eb_allreduce_entries(sum, 0, NULL, 1, NULL), EB_ARGUMENT, "entries is NULL");
  OK(eb_allreduce_entries(sum, 0, NULL, 0, &count));
  eb_entry entry;
  OK(eb_allreduce_entries(sum, 0, &entry, 1, NULL));
  if (outcome.round != 1 || outcome.bytes != sizeof model || outcome.fresh != 1 || outcome.initiator != -1 || count != 1 ||
      entry.rank != 0 || entry.part != EB_FRESH || entry.age != 0) {
    fprintf(stderr, "round %llu, %zu entries\n", (unsigned long long)outcome.round, count);
    failures++;
  }
  /* An older caller's structure ends earlier, and what is behind it stays as it is. */
  eb_outcome older = {.size = offsetof(eb_outcome, fresh), .fresh = 12345};
  OK(eb_allreduce_outcome(sum, 0, &older));
  if (older.fresh != 12345 || older.bytes != sizeof model) {
    failures++;
  }
  OK(eb_allreduce_release(sum));
  EXPECT(eb_allreduce_outcome(sum, 0, &outcome), EB_ARGUMENT, "released");
  int fd;
  EXPECT(eb_allreduce_completion_fd(sum, &fd), EB_USAGE, "executor=thread");
  EXPECT(eb_allreduce_leave(sum, 1, NULL), EB_ARGUMENT, "outcomes is NULL");
  OK(eb_allreduce_leave(sum, 1, &outcomes));
  OK(eb_allreduce_entries(sum, 0, &entry, 1, &count));
  if (outcomes != 1 || count != 1 || entry.part != EB_LEAVING) {
    fprintf(stderr, "%zu outcomes of a rank that leaves, %zu entries\n", outcomes, count);
    failures++;
  }
  EXPECT(eb_allreduce_contribution(sum, &data, &bytes), EB_USAGE, "has finished");
  OK(eb_allreduce_leave(sum, 1, &outcomes));
  if (outcomes != 0) {
    failures++;
  }
  OK(eb_allreduce_finish(sum, 1));
  EXPECT(eb_allreduce_contribution(sum, &data, &bytes), EB_USAGE, "has finished");
  OK(eb_allreduce_finish(sum, 1));
  OK(eb_allreduce_destroy(sum));
  EXPECT(eb_allreduce_destroy(sum), EB_HANDLE, "closed");
  EXPECT(eb_allreduce_arrive(sum), EB_HANDLE, "closed");
}

/* The second rank comes when the first one has tried what it must not. */
static void of_two(eb_world world, uint32_t rank) {
  const size_t length = 4;
  eb_allreduce_options options = {.size = sizeof options, .lengths = &length, .tensors = 1, .executor = "thread"};
  struct shared shared;
  OK(eb_allreduce_create(world, &options, &shared.sum));
  if (rank == 0) {
    OK(eb_allreduce_arrive(shared.sum));
    pthread_t thread;
    pthread_barrier_init(&shared.begun, NULL, 2);
    pthread_create(&thread, NULL, wait_in_vain, &shared);
    pthread_barrier_wait(&shared.begun);
    usleep(200000);
    size_t outcomes;
    EXPECT(eb_allreduce_try_wait(shared.sum, &outcomes), EB_BUSY, "another thread");
    EXPECT(eb_allreduce_destroy(shared.sum), EB_BUSY, "another thread");
    pthread_join(thread, NULL);
    if (shared.waited != EB_TIMEOUT) {
      fprintf(stderr, "the wait ended with: %s\n", eb_strerror((int)shared.waited));
      failures++;
    }
    eb_error error = {.size = sizeof error};
    EXPECT(eb_allreduce_wait(shared.sum, 0.01, &outcomes), EB_TIMEOUT, "waiting for rank 1");
    eb_last_error(&error);
    if (error.rank != 0 || error.peer != 1) {
      fprintf(stderr, "rank %d, peer %d\n", (int)error.rank, (int)error.peer);
      failures++;
    }
    pid_t child = fork();
    if (child == 0) {
      void *data;
      failures = 0;
      EXPECT(eb_allreduce_contribution(shared.sum, &data, NULL), EB_FORKED, "forked child");
      EXPECT(eb_allreduce_destroy(shared.sum), EB_FORKED, "forked child");
      EXPECT(eb_world_close(world), EB_FORKED, "forked child");
      EXPECT(eb_world_abort(world, "no"), EB_FORKED, "forked child");
      _exit(failures);
    }
    int status = 1;
    waitpid(child, &status, 0);
    failures += status != 0;
  }
  OK(eb_world_barrier(world, 30));
  if (rank == 1) {
    OK(eb_allreduce_arrive(shared.sum));
  }
  int fd;
  size_t outcomes = 0;
  OK(eb_allreduce_completion_fd(shared.sum, &fd));
  while (outcomes == 0) {
    struct pollfd waited = {.fd = fd, .events = POLLIN};
    if (poll(&waited, 1, 30000) != 1) {
      fprintf(stderr, "rank %u: the descriptor says nothing\n", (unsigned)rank);
      failures++;
      break;
    }
    OK(eb_allreduce_try_wait(shared.sum, &outcomes));
  }
  struct pollfd waited = {.fd = fd, .events = POLLIN};
  if (poll(&waited, 1, 0) != 0) {
    fprintf(stderr, "rank %u: the descriptor is readable with nothing to take\n", (unsigned)rank);
    failures++;
  }
  OK(eb_allreduce_finish(shared.sum, 30));
  OK(eb_allreduce_destroy(shared.sum));
}

int main(void) {
  eb_world world;
  OK(eb_world_from_env(NULL, &world));
  eb_world_info info = {.size = sizeof info};
  OK(eb_world_get_info(world, &info));
  if (info.ranks == 1) {
    alone(world);
  } else {
    of_two(world, info.rank);
  }
  OK(eb_world_close(world));
  EXPECT(eb_world_close(world), EB_HANDLE, "closed");
  printf("rank %u of %u: %d failures\n", (unsigned)info.rank, (unsigned)info.ranks, failures);
  return failures != 0;
}
