/* earlybird: partial collectives, where the first process to arrive triggers and late ones are carried.
 *
 * Every call returns EB_OK or the kind of its failure; eb_last_error says more. A call that fails does nothing, unless its
 * comment says otherwise. Handles are numbers: a handle that was closed or never existed is an error, not a crash. So is any
 * call in a child that was forked from the process that made the handle.
 *
 * Threads: any number of threads may use an eb_world at once. One thread at a time may use an eb_allreduce; a call during
 * another one returns EB_BUSY.
 *
 * Structures begin with their size, which the caller sets to sizeof. A library that knows more or fewer fields uses those
 * that both know. Set all other fields to 0, which stands for the default.
 *
 * Times are in seconds. INFINITY waits for ever.
 */

#ifndef EARLYBIRD_H
#define EARLYBIRD_H

#include <stddef.h>
#include <stdint.h>

/**
 * What a call returns. The numbers never change; new ones may be added.
 */
typedef enum eb_status {
  /**
   * The call succeeded.
   */
  EB_OK = 0,
  /**
   * The deadline passed. After eb_allreduce_wait and eb_allreduce_finish nothing is lost: call again to continue
   * waiting.
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
   * The call needs more memory than is available.
   */
  EB_MEMORY = 8,
  /**
   * The kernel lets this process lock less memory than a device needs.
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
   * The operating system returned an error.
   */
  EB_OS = 12,
  /**
   * The wait was interrupted. Only a binding of another language in the same process does that.
   */
  EB_INTERRUPTED = 13,
  /**
   * The handle was closed, or was never a handle.
   */
  EB_HANDLE = 100,
  /**
   * A null pointer, or an impossible size or text.
   */
  EB_ARGUMENT = 101,
  /**
   * Another thread is in a call with the same handle.
   */
  EB_BUSY = 102,
  /**
   * This process was forked from the one that made the handle.
   */
  EB_FORKED = 103,
  /**
   * An error of the library. Please report it.
   */
  EB_INTERNAL = 104,
} eb_status;

/**
 * A rank's part in a round.
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
   * No contribution: it is the rank's last round.
   */
  EB_LEAVING = 2,
} eb_part;

/**
 * The details of a failure.
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
   * The other rank that the failure concerns, or -1: the dead rank, the first missing rank, or the rank that
   * aborted.
   */
  int32_t peer;
  /**
   * One line: what failed, where, why, and what to do. Valid until the next call of this thread fails.
   */
  const char *message;
} eb_error;

/**
 * How to join a world. A field that is 0 keeps the value from the environment (EARLYBIRD_FABRIC and so on).
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
   * The secret of this job, at least 16 bytes long.
   */
  const char *secret;
  /**
   * The file of measured parameters.
   */
  const char *hw_config;
  /**
   * The time limit of joining, and of later calls that all ranks make together and that have no limit of their own.
   */
  double deadline;
  /**
   * 2: ranks that share the memory of a machine are a host. 1: this rank is a host of its own, and reaches all others
   * over the network.
   */
  uint32_t levels;
} eb_config;

/**
 * The processes of a job, as one of them sees them.
 */
typedef struct eb_world {
  /**
   * An opaque number; 0 is not a handle.
   */
  uint64_t id;
} eb_world;

/**
 * The properties of a world.
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
   * The number of ranks in the world.
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
  /**
   * The number of hosts: ranks that share memory are on one.
   */
  uint32_t hosts;
} eb_world_info;

/**
 * The choices of a collective, the same on all ranks. A field that is 0 stands for the default. Texts are those of the
 * `earlybird` command.
 */
typedef struct eb_allreduce_options {
  /**
   * sizeof(eb_allreduce_options), set by the caller.
   */
  size_t size;
  /**
   * The lengths of the tensors, in elements. A contribution holds the tensors one after the other.
   */
  const size_t *lengths;
  /**
   * The number of tensors.
   */
  size_t tensors;
  /**
   * The type of the elements: "f32" (the default), "f64", "f16", "bf16", "i32", "i64", "u32", "u64", "i8", "u8",
   * "i16" or "bool". The last are bytes that are 0 or 1: a sum or maximum is 1 if any is 1, a product or minimum if
   * all are.
   */
  const char *dtype;
  /**
   * A method by name, such as "wagma". It sets fire, absent, scale and group; these fields override it if they are
   * given.
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
   * Which ranks average with each other: "world" (the default), "butterfly=8", "arrivals=4". All but "world" need a
   * model.
   */
  const char *group;
  /**
   * How data moves: "auto" (the default), "cut" or "tree".
   */
  const char *mover;
  /**
   * The agent that carries out rounds: "auto" (the default), "caller", "thread", "peer" or "provider".
   */
  const char *executor;
  /**
   * The maximum number of unreleased rounds of a rank, beyond which the others wait for it; 0 stands for 8.
   */
  uint32_t depth;
  /**
   * The model with which all ranks begin, all tensors one after the other, if contributions are updates of a model.
   */
  const void *model;
  /**
   * The length of the model in bytes.
   */
  size_t model_bytes;
} eb_allreduce_options;

/**
 * A collective. Its calls come in the order eb_allreduce_contribution, eb_allreduce_arrive, eb_allreduce_wait, round
 * after round, and at the end eb_allreduce_finish and eb_allreduce_destroy.
 */
typedef struct eb_allreduce {
  /**
   * An opaque number; 0 is not a handle.
   */
  uint64_t id;
} eb_allreduce;

/**
 * The outcome of a round. It is valid until the next call with the same handle, except for eb_allreduce_outcome,
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
   * The reduced elements, all tensors one after the other. The caller must not write them.
   */
  const void *data;
  /**
   * The length of the data in bytes.
   */
  size_t bytes;
  /**
   * The number of contributions that entered the round that they were made for.
   */
  uint32_t fresh;
  /**
   * The number of contributions that entered late.
   */
  uint32_t carried;
  /**
   * The number of entries of the cut; eb_allreduce_entries returns them.
   */
  uint32_t entries;
  /**
   * The rank that closed the round; -1 in a synchronous round.
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
   * The rank's part in the round.
   */
  enum eb_part part;
  /**
   * The number of rounds that the contribution is late.
   */
  uint64_t age;
  /**
   * The weight of the contribution.
   */
  uint32_t weight;
  /**
   * Reserved: 0.
   */
  uint32_t reserved;
  /**
   * How long the rank computed the contribution, in seconds by its own clock; -1 where that is not known.
   */
  double computed;
  /**
   * How long the rank waited for its round before this one, in seconds; -1 where that is not known.
   */
  double waited;
} eb_entry;

#ifdef __cplusplus
extern "C" {
#endif // __cplusplus

/**
 * Returns a short description of a status; never NULL.
 */
const char *eb_strerror(int32_t status);

/**
 * Fills `error` with the last failure of a call of this thread. Calls that succeed do not change it.
 */
enum eb_status eb_last_error(struct eb_error *error);

/**
 * Returns the version of the library, such as 0.1.0.
 */
const char *eb_version(void);

/**
 * Joins the world that the launcher's environment describes. Without a launcher, it creates a world of one rank.
 * Returns when all ranks have joined. `config` may be NULL.
 */
enum eb_status eb_world_from_env(const struct eb_config *config,
                                 struct eb_world *world);

/**
 * Joins a world of `ranks` ranks as `rank`, whatever the environment says: for the world of a group or a library. All
 * ranks pass the same `store`, and a new one for each world: unix:NAME on one machine, or tcp:HOST:PORT with a free
 * port on the host of rank 0. Returns when all ranks have joined. `config` may be NULL.
 */
enum eb_status eb_world_join(uint32_t rank,
                             uint32_t ranks,
                             const char *store,
                             const struct eb_config *config,
                             struct eb_world *world);

/**
 * Creates a world of the ranks that pass the same `color`, in `group`. Their ranks there ascend with `key`; ranks with
 * the same key keep the order of `world`. All ranks of `world` make this call, and each gets the world of its own
 * color. A rank that needs no new world passes a color that no other rank passes, and closes the result. The ranks
 * meet through `world`, so they need no store. The new world uses shared memory if all its ranks are on one machine,
 * unless another fabric was chosen. It outlives `world`. After EB_TIMEOUT the ranks are out of step: create a new
 * world.
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
 * Blocks until all ranks have called it. After EB_TIMEOUT the ranks are out of step: create a new world.
 */
enum eb_status eb_world_barrier(struct eb_world world,
                                double timeout);

/**
 * Makes every later call of every rank fail, with this rank and `reason` in the error. Any thread may call it; later
 * reasons do not replace the first one.
 */
enum eb_status eb_world_abort(struct eb_world world,
                              const char *reason);

/**
 * Closes a handle. The rank leaves the world when its last collective is destroyed, too. Over a network the call may
 * wait until other ranks have received what this rank has sent.
 */
enum eb_status eb_world_close(struct eb_world world);

/**
 * Copies `bytes` bytes of rank `root` to all ranks. Returns when this rank has them.
 *
 * All ranks call this and the other synchronous collectives in the same order, with the same lengths, from one thread
 * of each at a time. After a failure other than EB_ARGUMENT, EB_USAGE, EB_HANDLE and EB_FORKED the ranks are out of
 * step, and later collectives fail: create a new world. Memory belongs to the caller and has any length; it may be
 * NULL if it has no bytes. The memory that is read must not overlap the memory that is written.
 */
enum eb_status eb_world_broadcast(struct eb_world world,
                                  void *data,
                                  size_t bytes,
                                  uint32_t root,
                                  double timeout);

/**
 * Gives `mine` of every rank, of `bytes` bytes, to every rank. `all` holds the blocks of all ranks, in the order of
 * ranks.
 */
enum eb_status eb_world_all_gather(struct eb_world world,
                                   const void *mine,
                                   size_t bytes,
                                   void *all,
                                   double timeout);

/**
 * Gives `mine` of every rank, of `bytes` bytes, to rank `root`, whose `all` holds the blocks of all ranks, in their
 * order. Other ranks pass NULL for `all`.
 */
enum eb_status eb_world_gather(struct eb_world world,
                               const void *mine,
                               size_t bytes,
                               void *all,
                               uint32_t root,
                               double timeout);

/**
 * Cuts `all` of rank `root` into blocks of `bytes` bytes, and copies block i into `mine` of rank i. Other ranks pass
 * NULL for `all`.
 */
enum eb_status eb_world_scatter(struct eb_world world,
                                const void *all,
                                void *mine,
                                size_t bytes,
                                uint32_t root,
                                double timeout);

/**
 * Gives block i of each rank's `sent` to rank i, whose `received` holds the blocks in the order of the ranks that sent
 * them. Blocks have `bytes` bytes.
 */
enum eb_status eb_world_all_to_all(struct eb_world world,
                                   const void *sent,
                                   void *received,
                                   size_t bytes,
                                   double timeout);

/**
 * As eb_world_all_to_all, with blocks of any lengths. This rank sends `sent_bytes[i]` bytes to rank i, and receives
 * `received_bytes[i]` bytes from it. Each rank must pass the lengths that the others send to it. Both arrays have an
 * element for each rank.
 */
enum eb_status eb_world_all_to_all_of(struct eb_world world,
                                      const void *sent,
                                      const size_t *sent_bytes,
                                      void *received,
                                      const size_t *received_bytes,
                                      double timeout);

/**
 * Reduces `data` of all ranks, element by element, and writes the result to `data` on every rank. `dtype` and `reduce`
 * are the texts of eb_allreduce_options, and `reduce` may also be "mean"; NULL stands for "f32" and "sum". Elements
 * are reduced in the order of ranks, so all ranks get the same bits.
 */
enum eb_status eb_world_all_reduce(struct eb_world world,
                                   void *data,
                                   size_t count,
                                   const char *dtype,
                                   const char *reduce,
                                   double timeout);

/**
 * Reduces `mine` of all ranks, of `count` elements, and writes the result to `result` of rank `root`. Other ranks pass
 * NULL for `result`.
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
 * Reduces `all` of all ranks, element by element, and writes block i of the result to `mine` of rank i. Blocks have
 * `count` elements, and `all` has a block for each rank.
 */
enum eb_status eb_world_reduce_scatter(struct eb_world world,
                                       const void *all,
                                       void *mine,
                                       size_t count,
                                       const char *dtype,
                                       const char *reduce,
                                       double timeout);

/**
 * Prepares messages at a time that the program chooses. All ranks must call it, or make their first message, at the
 * same point in the order of their collective calls.
 */
enum eb_status eb_world_open_messages(struct eb_world world,
                                      double timeout);

/**
 * Sends `bytes` bytes to rank `to`. Returns when `data` may change. Messages with one tag from one rank to another
 * arrive in the order in which they were sent. Any threads may send and receive at the same time. If two ranks send
 * each other more than two slots hold (64 KiB at most each) before they receive, they wait for each other.
 */
enum eb_status eb_world_send(struct eb_world world,
                             const void *data,
                             size_t bytes,
                             uint32_t to,
                             uint64_t tag,
                             double timeout);

/**
 * Receives a message of `bytes` bytes from rank `from`. If no part of the message has moved at EB_TIMEOUT, nothing is
 * lost: call again to continue waiting.
 */
enum eb_status eb_world_receive(struct eb_world world,
                                void *data,
                                size_t bytes,
                                uint32_t from,
                                uint64_t tag,
                                double timeout);

/**
 * As eb_world_receive, but from any rank that has a message with this tag. `from` returns the rank, and may be NULL.
 */
enum eb_status eb_world_receive_any(struct eb_world world,
                                    void *data,
                                    size_t bytes,
                                    uint64_t tag,
                                    uint32_t *from,
                                    double timeout);

/**
 * Creates a collective. All ranks call it, in the same order as their other collective calls, within the world's
 * deadline. Returns when all ranks have called it.
 */
enum eb_status eb_allreduce_create(struct eb_world world,
                                   const struct eb_allreduce_options *options,
                                   struct eb_allreduce *allreduce);

/**
 * Returns the memory of the next contribution: registered, and with the content of an earlier contribution. The caller
 * may write it until eb_allreduce_arrive, and not afterwards.
 */
enum eb_status eb_allreduce_contribution(struct eb_allreduce allreduce,
                                         void **data,
                                         size_t *bytes);

/**
 * Sets the weight of the next contribution, under the scale "weights".
 */
enum eb_status eb_allreduce_weigh(struct eb_allreduce allreduce, uint16_t weight);

/**
 * Hands in the contribution and returns at once.
 */
enum eb_status eb_allreduce_arrive(struct eb_allreduce allreduce);

/**
 * Waits for the outcome of the last arrival, and returns the number of outcomes: 1, or more if rounds were missed.
 * After EB_TIMEOUT nothing is lost: call again.
 */
enum eb_status eb_allreduce_wait(struct eb_allreduce allreduce,
                                 double timeout,
                                 size_t *outcomes);

/**
 * As eb_allreduce_wait, without blocking: returns 0 outcomes if the outcome is not available yet.
 */
enum eb_status eb_allreduce_try_wait(struct eb_allreduce allreduce, size_t *outcomes);

/**
 * Returns one of the outcomes of the last eb_allreduce_wait, eb_allreduce_try_wait or eb_allreduce_leave, counted from 0,
 * oldest first.
 */
enum eb_status eb_allreduce_outcome(struct eb_allreduce allreduce,
                                    size_t index,
                                    struct eb_outcome *outcome);

/**
 * Writes the entries of an outcome's cut, in the order of reduction, but at most `capacity` of them. `count` gets the
 * number of all entries, and may be NULL.
 */
enum eb_status eb_allreduce_entries(struct eb_allreduce allreduce,
                                    size_t index,
                                    struct eb_entry *entries,
                                    size_t capacity,
                                    size_t *count);

/**
 * Releases the outcomes, so that their memory may be used again. The next eb_allreduce_contribution or
 * eb_allreduce_arrive does so, too.
 */
enum eb_status eb_allreduce_release(struct eb_allreduce allreduce);

/**
 * Returns a descriptor that is readable when eb_allreduce_try_wait would return outcomes or fail: for poll(2) and event
 * loops. It needs the executor "thread". The descriptor belongs to the collective: do not read, write or close it.
 */
enum eb_status eb_allreduce_completion_fd(struct eb_allreduce allreduce,
                                          int *fd);

/**
 * Leaves like eb_allreduce_finish, step by step: returns the number of outcomes that were not taken, and 0 once this
 * rank has left. Call it until then, and read the outcomes in between: together they hold all that this rank
 * contributed. After EB_TIMEOUT, call again.
 */
enum eb_status eb_allreduce_leave(struct eb_allreduce allreduce,
                                  double timeout,
                                  size_t *outcomes);

/**
 * Leaves in good order: what is carried enters a round, and the other ranks no longer depend on this one. Drops
 * outcomes that were not taken; eb_allreduce_leave returns them. After EB_TIMEOUT, call again.
 */
enum eb_status eb_allreduce_finish(struct eb_allreduce allreduce,
                                   double timeout);

/**
 * Destroys a collective. If it was not finished, this aborts the job, because the others would wait for this rank.
 */
enum eb_status eb_allreduce_destroy(struct eb_allreduce allreduce);

#ifdef __cplusplus
}  // extern "C"
#endif  // __cplusplus

#endif  /* EARLYBIRD_H */
