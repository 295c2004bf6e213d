/* earlybird: partial collectives, where the first process to arrive triggers and late ones are carried.
 *
 * Every call returns EB_OK or what failed; eb_last_error says more. A call does nothing if it fails, unless its comment says
 * otherwise. Handles are numbers: one that was closed, or that never was one, is an error and no crash. So is any call in a
 * child that was forked from the process that made the handle.
 *
 * Threads: an eb_world may be used by any number of threads at once. An eb_allreduce is used by one thread at a time; a call
 * during another one returns EB_BUSY.
 *
 * Structures begin with their size, which the caller sets to sizeof: a library that knows more fields, or fewer, takes what
 * both know. Set all other fields to 0, which stands for the default.
 *
 * Times are in seconds. INFINITY waits for ever.
 */

#ifndef EARLYBIRD_H
#define EARLYBIRD_H

#include <stddef.h>
#include <stdint.h>

/**
 * What a call returns. Numbers stay what they are, and new ones may come.
 */
typedef enum eb_status {
  /**
   * It is done.
   */
  EB_OK = 0,
  /**
   * The deadline passed. After eb_allreduce_wait and eb_allreduce_finish nothing is lost: call again to go on waiting.
   */
  EB_TIMEOUT = 1,
  /**
   * A process ended without leaving its collectives. Every later call fails the same way.
   */
  EB_PEER_DIED = 2,
  /**
   * A rank that had left in good order was still needed.
   */
  EB_PEER_LEFT = 3,
  /**
   * A rank called eb_world_abort. Every later call fails the same way.
   */
  EB_ABORTED = 4,
  /**
   * Ranks disagree on something that must be the same everywhere.
   */
  EB_MISMATCH = 5,
  /**
   * The world could not be set up.
   */
  EB_JOIN = 6,
  /**
   * A transport failed after the world had been joined.
   */
  EB_TRANSPORT = 7,
  /**
   * Less memory than is needed.
   */
  EB_MEMORY = 8,
  /**
   * The kernel lets this process lock less memory than a device is to use.
   */
  EB_LOCKED_MEMORY = 9,
  /**
   * An invalid choice, variable or file.
   */
  EB_CONFIG = 10,
  /**
   * A call that is not allowed now.
   */
  EB_USAGE = 11,
  /**
   * The operating system refused.
   */
  EB_OS = 12,
  /**
   * The wait was interrupted, which only a binding of another language in the same process does.
   */
  EB_INTERRUPTED = 13,
  /**
   * The handle was closed, or never was one.
   */
  EB_HANDLE = 100,
  /**
   * A null pointer, a size or a text that cannot be.
   */
  EB_ARGUMENT = 101,
  /**
   * Another thread is in a call with the same handle.
   */
  EB_BUSY = 102,
  /**
   * This is a child that was forked from the process that made the handle.
   */
  EB_FORKED = 103,
  /**
   * A mistake of the library. Please report it.
   */
  EB_INTERNAL = 104,
} eb_status;

/**
 * What a rank has in a round.
 */
typedef enum eb_part {
  /**
   * A contribution that was made for an earlier round.
   */
  EB_CARRIED = 0,
  /**
   * A contribution that was made for this round.
   */
  EB_FRESH = 1,
  /**
   * Nothing: it is the rank's last round.
   */
  EB_LEAVING = 2,
} eb_part;

/**
 * What is known of a failure.
 */
typedef struct eb_error {
  /**
   * sizeof(eb_error), set by the caller.
   */
  size_t size;
  /**
   * What the call returned; EB_OK if no call of this thread has failed yet.
   */
  enum eb_status status;
  /**
   * The rank that reports, or -1.
   */
  int32_t rank;
  /**
   * The rank that the failure concerns, or -1: the dead one, the first that is missing, the one that aborted.
   */
  int32_t peer;
  /**
   * One line: what failed, where, why, and what to do. Valid until the next call of this thread that fails.
   */
  const char *message;
} eb_error;

/**
 * How to join a world. Fields that are 0 stand for what the environment says (EARLYBIRD_FABRIC and so on).
 */
typedef struct eb_config {
  /**
   * sizeof(eb_config), set by the caller.
   */
  size_t size;
  /**
   * The transport: "auto", "shm", "ofi" or "verbs".
   */
  const char *fabric;
  /**
   * The libfabric provider, such as "tcp;ofi_rxm".
   */
  const char *provider;
  /**
   * The secret of this job, of 16 bytes or more.
   */
  const char *secret;
  /**
   * The file of measured parameters.
   */
  const char *hw_config;
  /**
   * The time limit of joining, and of later calls that all ranks make together without one of their own.
   */
  double deadline;
} eb_config;

/**
 * The processes of a job, as one of them sees them.
 */
typedef struct eb_world {
  /**
   * A number that means nothing to a caller; 0 is no handle.
   */
  uint64_t id;
} eb_world;

/**
 * What is known of a world.
 */
typedef struct eb_world_info {
  /**
   * sizeof(eb_world_info), set by the caller.
   */
  size_t size;
  /**
   * This rank, from 0.
   */
  uint32_t rank;
  /**
   * Ranks in the world.
   */
  uint32_t ranks;
  /**
   * The transport. Valid until the world is closed.
   */
  const char *fabric;
  /**
   * The provider of libfabric, or over verbs the kind of network, such as "RoCE v2"; empty in shared memory. Valid until
   * the world is closed.
   */
  const char *provider;
} eb_world_info;

/**
 * The choices of a collective, the same on all ranks. Fields that are 0 stand for the defaults. Texts are those of the
 * `earlybird` command.
 */
typedef struct eb_allreduce_options {
  /**
   * sizeof(eb_allreduce_options), set by the caller.
   */
  size_t size;
  /**
   * The lengths of the tensors, in elements. A contribution has them one after the other.
   */
  const size_t *lengths;
  /**
   * How many tensors there are.
   */
  size_t tensors;
  /**
   * The type of the elements: "f32" (the default), "f64", "f16", "bf16", "i32", "i64", "u32", "u64", "i8", "u8", "i16" or
   * "bool" (bytes that are 0 or 1: a sum or maximum is 1 if any is, a product or minimum if all are).
   */
  const char *dtype;
  /**
   * A method by name, such as "wagma", in place of fire, absent, scale and group; these change it if they are given.
   */
  const char *preset;
  /**
   * When a round fires: "all" (the default), "solo", "majority", "quorum=5", with options such as "quorum=5,deadline=2ms".
   */
  const char *fire;
  /**
   * How long a round stays open after it has fired: "auto" (the default), "0", or a time such as "50us".
   */
  const char *grace;
  /**
   * What happens to late contributions: "carry" (the default), "drop", "hold", "decay=0.5".
   */
  const char *absent;
  /**
   * The reduction: "sum" (the default), "min", "max" or "prod".
   */
  const char *reduce;
  /**
   * The divisor of the sum: "sum" (the default, none), "world", "contributions", "weights".
   */
  const char *scale;
  /**
   * Which ranks average with each other: "world" (the default), "butterfly=8", "arrivals=4". Others than the world need a
   * model.
   */
  const char *group;
  /**
   * How data moves: "auto" (the default), "cut" or "tree".
   */
  const char *mover;
  /**
   * The agent that carries a round out: "auto" (the default), "caller", "thread", "peer" or "provider".
   */
  const char *executor;
  /**
   * The number of unreleased rounds that a rank may have before others wait for it; 0: 8.
   */
  uint32_t depth;
  /**
   * The model that all ranks begin with, all tensors one after the other, if contributions are updates of a model.
   */
  const void *model;
  /**
   * The bytes of the model.
   */
  size_t model_bytes;
} eb_allreduce_options;

/**
 * A collective. Its calls come in the order eb_allreduce_contribution, eb_allreduce_arrive, eb_allreduce_wait, round after
 * round, and at the end eb_allreduce_finish and eb_allreduce_destroy.
 */
typedef struct eb_allreduce {
  /**
   * A number that means nothing to a caller; 0 is no handle.
   */
  uint64_t id;
} eb_allreduce;

/**
 * The outcome of a round. It is valid until the next call with the same handle but for eb_allreduce_outcome,
 * eb_allreduce_entries and eb_allreduce_completion_fd.
 */
typedef struct eb_outcome {
  /**
   * sizeof(eb_outcome), set by the caller.
   */
  size_t size;
  /**
   * The round, counted from 1.
   */
  uint64_t round;
  /**
   * The reduced elements, all tensors one after the other. They must not be written.
   */
  const void *data;
  /**
   * Their bytes.
   */
  size_t bytes;
  /**
   * How many contributions entered the round that they were made for.
   */
  uint32_t fresh;
  /**
   * How many entered late.
   */
  uint32_t carried;
  /**
   * How many entries the cut has; eb_allreduce_entries gives them.
   */
  uint32_t entries;
  /**
   * The rank that closed the round; -1 in a synchronous one.
   */
  int32_t initiator;
} eb_outcome;

/**
 * An entry of a cut.
 */
typedef struct eb_entry {
  /**
   * The rank.
   */
  uint32_t rank;
  /**
   * What it has in the round.
   */
  enum eb_part part;
  /**
   * How many rounds late that is.
   */
  uint64_t age;
  /**
   * Its weight.
   */
  uint32_t weight;
  /**
   * 0.
   */
  uint32_t reserved;
} eb_entry;

#ifdef __cplusplus
extern "C" {
#endif // __cplusplus

/**
 * A few words for a status; never NULL.
 */
const char *eb_strerror(int32_t status);

/**
 * What is known of the last failure of a call of this thread. A call that succeeds leaves it as it is.
 */
enum eb_status eb_last_error(struct eb_error *error);

/**
 * The version of the library, such as 0.1.0.
 */
const char *eb_version(void);

/**
 * Joins the world that the launcher's environment describes; without a launcher, a world of one rank. Returns when all ranks
 * have joined. `config` may be NULL.
 */
enum eb_status eb_world_from_env(const struct eb_config *config,
                                 struct eb_world *world);

/**
 * Joins a world of `ranks` ranks as `rank`, whatever the environment says: that of a group, or of a library. All ranks name the
 * same `store`, a new one for each world: unix:NAME on one machine, or tcp:HOST:PORT with a free port on the host of rank 0.
 * Returns when all ranks have joined. `config` may be NULL.
 */
enum eb_status eb_world_join(uint32_t rank,
                             uint32_t ranks,
                             const char *store,
                             const struct eb_config *config,
                             struct eb_world *world);

/**
 * A world of the ranks that pass the same `color`, in `group`. Their ranks there ascend with `key`; of the same key, with their
 * ranks in `world`. All ranks of `world` make this call, and each gets the world of its own color: one that needs none passes a
 * color that no other passes, and closes what it gets. The ranks meet through `world`, so this needs no store. The new world is
 * over shared memory where all its ranks are on one machine and the fabric was not chosen otherwise, and it outlives `world`.
 * After EB_TIMEOUT the ranks are out of step: begin a new world.
 */
enum eb_status eb_world_split(struct eb_world world,
                              uint32_t color,
                              int32_t key,
                              struct eb_world *group);

/**
 * Fills `info`.
 */
enum eb_status eb_world_get_info(struct eb_world world, struct eb_world_info *info);

/**
 * Waits until all ranks have called it. After EB_TIMEOUT the ranks are out of step: begin a new world.
 */
enum eb_status eb_world_barrier(struct eb_world world,
                                double timeout);

/**
 * Makes every later call of every rank fail, with this rank and `reason` in the error. Any thread may call it; the first
 * reason stays.
 */
enum eb_status eb_world_abort(struct eb_world world,
                              const char *reason);

/**
 * Closes a handle. The rank leaves the world when its last collective is destroyed, too; over a network that may wait until
 * other ranks have what this one has sent.
 */
enum eb_status eb_world_close(struct eb_world world);

/**
 * Copies `bytes` bytes of rank `root` to all ranks. Returns when this rank has them.
 *
 * This and the other synchronous collectives are called by all ranks in the same order, with the same lengths, by one
 * thread of each at a time. After a failure other than EB_ARGUMENT, EB_USAGE, EB_HANDLE and EB_FORKED the ranks are out of
 * step, and later ones fail: begin a new world. Memory is the caller's, of any length; it may be NULL if it has no bytes. What is
 * read and what is written must not overlap.
 */
enum eb_status eb_world_broadcast(struct eb_world world,
                                  void *data,
                                  size_t bytes,
                                  uint32_t root,
                                  double timeout);

/**
 * Gives `mine` of every rank, of `bytes` bytes, to every rank: `all` has room for those of all ranks, in their order.
 */
enum eb_status eb_world_all_gather(struct eb_world world,
                                   const void *mine,
                                   size_t bytes,
                                   void *all,
                                   double timeout);

/**
 * Gives `mine` of every rank, of `bytes` bytes, to rank `root`, whose `all` has room for those of all ranks. Other ranks pass
 * NULL for `all`.
 */
enum eb_status eb_world_gather(struct eb_world world,
                               const void *mine,
                               size_t bytes,
                               void *all,
                               uint32_t root,
                               double timeout);

/**
 * Cuts `all` of rank `root` into blocks of `bytes` bytes, and gives rank i block i in `mine`. Other ranks pass NULL for `all`.
 */
enum eb_status eb_world_scatter(struct eb_world world,
                                const void *all,
                                void *mine,
                                size_t bytes,
                                uint32_t root,
                                double timeout);

/**
 * Gives block i of `sent` of each rank to rank i, which has it in `received`, in the order of ranks. Blocks have `bytes` bytes.
 */
enum eb_status eb_world_all_to_all(struct eb_world world,
                                   const void *sent,
                                   void *received,
                                   size_t bytes,
                                   double timeout);

/**
 * As eb_world_all_to_all, with blocks of any lengths: `sent_bytes[i]` bytes go to rank i, and `received_bytes[i]` come from it, as
 * that rank has said. Both arrays have an element for each rank.
 */
enum eb_status eb_world_all_to_all_of(struct eb_world world,
                                      const void *sent,
                                      const size_t *sent_bytes,
                                      void *received,
                                      const size_t *received_bytes,
                                      double timeout);

/**
 * Reduces `data` of all ranks, element by element, and leaves the result in it on every rank. `dtype` and `reduce` are the
 * texts of eb_allreduce_options, and `reduce` may be "mean", too; NULL stands for "f32" and "sum". Elements are reduced in
 * the order of ranks: all ranks have the same bits.
 */
enum eb_status eb_world_all_reduce(struct eb_world world,
                                   void *data,
                                   size_t count,
                                   const char *dtype,
                                   const char *reduce,
                                   double timeout);

/**
 * Reduces `mine` of all ranks, of `count` elements. Rank `root` has the result in `result`; other ranks pass NULL for it.
 */
enum eb_status eb_world_reduce(struct eb_world world,
                               const void *mine,
                               void *result,
                               size_t count,
                               const char *dtype,
                               const char *reduce,
                               uint32_t root,
                               double timeout);

/**
 * Reduces `all` of all ranks, and gives rank i block i of the result in `mine`. Blocks have `count` elements, and `all` has a
 * block for each rank.
 */
enum eb_status eb_world_reduce_scatter(struct eb_world world,
                                       const void *all,
                                       void *mine,
                                       size_t count,
                                       const char *dtype,
                                       const char *reduce,
                                       double timeout);

/**
 * Prepares messages, at a time that the program chooses: all ranks must call this, or make their first message, at the same
 * place in the order of their collective calls.
 */
enum eb_status eb_world_open_messages(struct eb_world world,
                                      double timeout);

/**
 * Sends `bytes` bytes to rank `to`. Returns when `data` may change. Messages with one tag from one rank to another arrive in
 * the order in which they were sent. Any threads may send and receive at the same time. Two ranks that send each other more
 * than two slots hold, of 64 KiB at most, before they receive wait for each other.
 */
enum eb_status eb_world_send(struct eb_world world,
                             const void *data,
                             size_t bytes,
                             uint32_t to,
                             uint64_t tag,
                             double timeout);

/**
 * Receives a message of rank `from`, which must have `bytes` bytes. After EB_TIMEOUT with no part of the message moved
 * nothing is lost: call again to go on waiting.
 */
enum eb_status eb_world_receive(struct eb_world world,
                                void *data,
                                size_t bytes,
                                uint32_t from,
                                uint64_t tag,
                                double timeout);

/**
 * As eb_world_receive, of whichever rank has a message with this tag; `from` says which. `from` may be NULL.
 */
enum eb_status eb_world_receive_any(struct eb_world world,
                                    void *data,
                                    size_t bytes,
                                    uint64_t tag,
                                    uint32_t *from,
                                    double timeout);

/**
 * Creates a collective. All ranks call it, in the same order as their other collective calls, within the world's deadline.
 */
enum eb_status eb_allreduce_create(struct eb_world world,
                                   const struct eb_allreduce_options *options,
                                   struct eb_allreduce *allreduce);

/**
 * The memory of the next contribution: registered, and with the content of an earlier one. It may be written until
 * eb_allreduce_arrive, and not from then on.
 */
enum eb_status eb_allreduce_contribution(struct eb_allreduce allreduce,
                                         void **data,
                                         size_t *bytes);

/**
 * Sets the weight of the next contribution, under the scale "weights".
 */
enum eb_status eb_allreduce_weigh(struct eb_allreduce allreduce, uint16_t weight);

/**
 * Hands the contribution in and returns at once.
 */
enum eb_status eb_allreduce_arrive(struct eb_allreduce allreduce);

/**
 * Waits for the outcome of the last arrival, and gives the number of outcomes: 1, and more if rounds were missed. After
 * EB_TIMEOUT nothing is lost: call again.
 */
enum eb_status eb_allreduce_wait(struct eb_allreduce allreduce,
                                 double timeout,
                                 size_t *outcomes);

/**
 * As eb_allreduce_wait without waiting: gives 0 if the outcome is not there yet.
 */
enum eb_status eb_allreduce_try_wait(struct eb_allreduce allreduce, size_t *outcomes);

/**
 * One of the outcomes that the last eb_allreduce_wait or eb_allreduce_try_wait gave, from 0 on, the oldest first.
 */
enum eb_status eb_allreduce_outcome(struct eb_allreduce allreduce,
                                    size_t index,
                                    struct eb_outcome *outcome);

/**
 * The entries of an outcome's cut, in the order of reduction: at most `capacity` of them are written. `count` gets the number
 * that there are, and may be NULL.
 */
enum eb_status eb_allreduce_entries(struct eb_allreduce allreduce,
                                    size_t index,
                                    struct eb_entry *entries,
                                    size_t capacity,
                                    size_t *count);

/**
 * Releases the outcomes: their memory may be used again. The next eb_allreduce_contribution or eb_allreduce_arrive does so,
 * too.
 */
enum eb_status eb_allreduce_release(struct eb_allreduce allreduce);

/**
 * A descriptor that is readable when eb_allreduce_try_wait would give outcomes or fail: for poll(2) and event loops. It needs the
 * executor "thread". It belongs to the collective: do not read, write or close it.
 */
enum eb_status eb_allreduce_completion_fd(struct eb_allreduce allreduce,
                                          int *fd);

/**
 * Leaves as eb_allreduce_finish, a part of the way: gives the number of outcomes that were not taken, and 0 once this rank has
 * left. Call it until then, and read the outcomes in between: together they have all that this rank contributed. After
 * EB_TIMEOUT, call again.
 */
enum eb_status eb_allreduce_leave(struct eb_allreduce allreduce,
                                  double timeout,
                                  size_t *outcomes);

/**
 * Leaves in good order: what is carried enters a round, and the other ranks no longer count on this one. Outcomes that were
 * not taken are dropped; eb_allreduce_leave gives them. After EB_TIMEOUT, call again.
 */
enum eb_status eb_allreduce_finish(struct eb_allreduce allreduce,
                                   double timeout);

/**
 * Destroys a collective. If it was not finished, the job is aborted, because the others would wait for this rank.
 */
enum eb_status eb_allreduce_destroy(struct eb_allreduce allreduce);

#ifdef __cplusplus
}  // extern "C"
#endif  // __cplusplus

#endif  /* EARLYBIRD_H */
