/* Synchronous collectives and messages: every rank makes the same calls, and has its result when they return.
 *   cc collectives.c $(pkg-config --cflags --libs earlybird) -o collectives && earlybird run -n 4 -- ./collectives */
#include <earlybird.h>

#include <stdio.h>
#include <stdlib.h>

static eb_world world;
static uint32_t rank, ranks;

/* Ends the program with what went wrong. */
static void must(eb_status status) {
  if (status != EB_OK) {
    eb_error error = {.size = sizeof error};
    eb_last_error(&error);
    fprintf(stderr, "%s\n", error.message);
    exit(1);
  }
}

static void check(int holds, const char *what) {
  if (!holds) {
    eb_world_abort(world, what);
    fprintf(stderr, "rank %u: wrong result of %s\n", (unsigned)rank, what);
    exit(1);
  }
}

static float *zeros(size_t count) {
  float *memory = calloc(count, sizeof *memory);
  if (memory == NULL) {
    exit(1);
  }
  return memory;
}

/* What `of` contributes for `to`. */
static float value(uint32_t of, uint32_t to) { return (float)(10 * of + to + 1); }

static void move_data(double patience) {
  float one = rank == 0 ? 42 : 0, *all = zeros(ranks), *more = zeros(ranks);
  must(eb_world_broadcast(world, &one, sizeof one, 0, patience));
  check(one == 42, "broadcast");

  one = value(rank, 0);
  must(eb_world_all_gather(world, &one, sizeof one, all, patience));
  for (uint32_t from = 0; from < ranks; from++) {
    check(all[from] == value(from, 0), "all_gather");
  }
  uint32_t last = ranks - 1;
  must(eb_world_gather(world, &one, sizeof one, rank == last ? more : NULL, last, patience));
  check(rank != last || more[0] == value(0, 0), "gather");

  for (uint32_t to = 0; to < ranks; to++) {
    all[to] = value(rank, to);
  }
  must(eb_world_scatter(world, rank == 0 ? all : NULL, &one, sizeof one, 0, patience));
  check(one == value(0, rank), "scatter");
  must(eb_world_all_to_all(world, all, more, sizeof one, patience));
  for (uint32_t from = 0; from < ranks; from++) {
    check(more[from] == value(from, rank), "all_to_all");
  }
  free(all);
  free(more);
}

/* Each rank sends one element more to each next rank. */
static void move_uneven_data(double patience) {
  size_t *to = calloc(ranks, sizeof *to), *from = calloc(ranks, sizeof *from), sent = 0, received = 0;
  if (to == NULL || from == NULL) {
    exit(1);
  }
  for (uint32_t peer = 0; peer < ranks; peer++) {
    to[peer] = peer * sizeof(float);
    from[peer] = rank * sizeof(float);
    sent += peer;
    received += rank;
  }
  float *outgoing = zeros(sent + 1), *incoming = zeros(received + 1);
  for (size_t i = 0; i < sent; i++) {
    outgoing[i] = (float)rank;
  }
  must(eb_world_all_to_all_of(world, outgoing, to, incoming, from, patience));
  for (size_t i = 0; i < received; i++) {
    check(incoming[i] == (float)(i / rank), "all_to_all_of");
  }
  free(outgoing);
  free(incoming);
  free(to);
  free(from);
}

static void reduce_data(double patience) {
  float *all = zeros(ranks), *sums = zeros(ranks), mine = 0;
  float *expected = zeros(ranks);
  for (uint32_t to = 0; to < ranks; to++) {
    all[to] = value(rank, to);
    for (uint32_t from = 0; from < ranks; from++) {
      expected[to] += value(from, to);
    }
  }
  must(eb_world_reduce_scatter(world, all, &mine, 1, NULL, NULL, patience));
  check(mine == expected[rank], "reduce_scatter");
  must(eb_world_reduce(world, all, rank == 0 ? sums : NULL, ranks, "f32", "sum", 0, patience));
  check(rank != 0 || sums[ranks - 1] == expected[ranks - 1], "reduce");
  must(eb_world_all_reduce(world, all, ranks, "f32", "max", patience));
  check(all[0] == value(ranks - 1, 0), "all_reduce");

  int8_t least = (int8_t)-(int)(rank % 100);
  must(eb_world_all_reduce(world, &least, 1, "i8", "min", patience));
  check(least == -(int)(ranks > 100 ? 99 : ranks - 1), "all_reduce of int8_t");
  _Bool all_are = 1, any_is = rank == ranks - 1;
  must(eb_world_all_reduce(world, &all_are, 1, "bool", "min", patience));
  must(eb_world_all_reduce(world, &any_is, 1, "bool", "max", patience));
  check(all_are && any_is, "all_reduce of _Bool");
  free(all);
  free(sums);
  free(expected);
}

/* A message round the ring, and one from any rank. */
static void send_messages(double patience) {
  must(eb_world_open_messages(world, patience));
  if (ranks == 1) {
    return;
  }
  const uint64_t ring = 1, any = 2;
  uint32_t next = (rank + 1) % ranks, before = (rank + ranks - 1) % ranks, token = rank, from = 0;
  must(eb_world_send(world, &token, sizeof token, next, ring, patience));
  must(eb_world_receive(world, &token, sizeof token, before, ring, patience));
  check(token == before, "receive");
  if (rank != 0) {
    must(eb_world_send(world, &rank, sizeof rank, 0, any, patience));
    return;
  }
  for (uint32_t left = ranks - 1; left > 0; left--) {
    must(eb_world_receive_any(world, &token, sizeof token, any, &from, patience));
    check(token == from, "receive_any");
  }
}

/* A group of ranks is a world of its own: here those with an even number, and those with an odd one, the last rank first. */
static void split_into_groups(double patience) {
  eb_world group;
  must(eb_world_split(world, rank % 2, -(int32_t)rank, &group));
  eb_world_info info = {.size = sizeof info};
  must(eb_world_get_info(group, &info));
  check(info.ranks == (ranks + 1 - rank % 2) / 2, "the size of a group");
  uint32_t last = rank;
  must(eb_world_broadcast(group, &last, sizeof last, 0, patience));
  check(last == rank + 2 * info.rank, "a broadcast in a group");
  must(eb_world_close(group));
}

int main(void) {
  const double patience = 60;
  must(eb_world_from_env(NULL, &world));
  eb_world_info info = {.size = sizeof info};
  must(eb_world_get_info(world, &info));
  rank = info.rank;
  ranks = info.ranks;
  move_data(patience);
  move_uneven_data(patience);
  reduce_data(patience);
  send_messages(patience);
  split_into_groups(patience);
  must(eb_world_barrier(world, patience));
  printf("rank %u of %u: every result is right\n", (unsigned)rank, (unsigned)ranks);
  must(eb_world_close(world));
  return 0;
}
