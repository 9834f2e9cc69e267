/* graph_run.c: one launch of a graph. A node is ready when all that it depends on has ended; all ready
 * nodes run at once, as the ranks of a collective, captured on several devices, must. In guarded mode each
 * ready node is an actor of its own; in threads mode one chain of nodes stays on the stream's thread and
 * every further ready node gets a worker. Everything locked, except where a node's work says otherwise. */
#include "backends/emu/cudart/stream_impl.h"

struct node_run {
  struct emu_actor actor;
  struct emu_graph_run *owner;
  struct emu_turn turn;
  uint32_t node_index;
  uint32_t waiting_for; /* dependencies that have not ended */
  bool started;
  struct node_run *next; /* in the workers' queue */
};

struct emu_graph_run {
  struct emu_graph_exec *exec;
  struct emu_stream *stream;
  struct race_point behind; /* the end of the launch */
  uint32_t remaining;       /* nodes that have not ended */
  int error;                /* the first */
  struct node_run *nodes;
};

static const struct emu_work *node_work(const struct node_run *node) {
  return &node->owner->exec->nodes[node->node_index].work;
}

/* What a host function's node comes after is not told apart from the rest of the graph. */
static void node_work_perform(const struct node_run *node) {
  const struct emu_work *work = node_work(node);
  if (work->kind == WORK_HOST) emu_race_host_knows(&node->owner->behind);
  emu_work_perform(work);
}

static void node_retire(struct node_run *node) {
  if (node->turn.run == NULL) return;
  emu_turn_unlist(&node->turn);
  node->turn.ops->retire(node->turn.run);
  node->turn.run = NULL;
}

/* The node has ended: calls `ready` for each dependent that is now ready. True if it was the last node. */
static bool node_ended(struct node_run *node, int error, void (*ready)(struct node_run *node, void *argument),
                       void *argument) {
  struct emu_graph_run *run = node->owner;
  const struct exec_node *plan = &run->exec->nodes[node->node_index];
  if (run->error == 0) run->error = error;
  node_retire(node);
  for (uint32_t i = 0; i < plan->dependent_count; i++) {
    struct node_run *next = &run->nodes[run->exec->dependents[plan->first_dependent + i]];
    if (--next->waiting_for == 0) ready(next, argument);
  }
  return --run->remaining == 0;
}

/* ---- guarded ---- */

static struct node_run *node_of(struct emu_actor *actor) {
  return (struct node_run *)(void *)((char *)actor - offsetof(struct node_run, actor));
}

static bool node_enabled(struct emu_actor *actor) {
  const struct node_run *node = node_of(actor);
  if (node->started || node->waiting_for != 0) return false;
  return node->turn.run == NULL || node->turn.ops->ready(node->turn.run);
}

static void node_wake(struct node_run *node, void *argument) {
  (void)argument;
  if (node->turn.run != NULL) emu_turn_list(&node->turn);
  emu_actor_wake(&node->actor);
}

static void node_over(void *argument, int error) {
  struct node_run *node = (struct node_run *)argument;
  struct emu_graph_run *run = node->owner;
  bool launched = node->turn.run != NULL;
  emu_actor_remove(&node->actor);
  bool last = node_ended(node, error, node_wake, NULL);
  if (launched) emu_kernel_runs_wake();
  if (last) stream_head_ended(run->stream, run->error); /* frees the run */
}

static void node_run_event(struct emu_actor *actor) {
  struct node_run *node = node_of(actor);
  node->started = true;
  emu_trace_actor(actor, (uint8_t)node_work(node)->kind);
  if (node->turn.run != NULL) {
    emu_turn_unlist(&node->turn);
    node->turn.ops->start(node->turn.run, node_over, node);
    return;
  }
  node_work_perform(node);
  node_over(node, 0);
}

static const struct emu_actor_ops node_actor_ops = {node_enabled, node_run_event};

void emu_graph_run_start(struct emu_graph_run *run) {
  if (run->remaining == 0) {
    stream_head_ended(run->stream, 0);
    return;
  }
  for (uint32_t i = 0; i < run->exec->node_count; i++) {
    if (run->nodes[i].waiting_for == 0) node_wake(&run->nodes[i], NULL);
  }
}

/* ---- threads ---- */

struct worker {
  os_thread thread;
  bool outside; /* in code that does not look at the stop flag */
  struct worker *next;
};

static struct {
  struct node_run *head, *tail;
  uint32_t queued_count, idle_count;
  bool stopping;
  struct worker *workers;
} pool;

/* Executes the node, then the ones that become ready: one here and the others on workers. */
struct chain {
  struct node_run *next;
  bool *outside;
};

static bool worker_start(void);

static void node_hand_over(struct node_run *node) {
  node->next = NULL;
  if (pool.tail != NULL) pool.tail->next = node;
  else pool.head = node;
  pool.tail = node;
  pool.queued_count++;
  if (pool.queued_count > pool.idle_count && !worker_start() && node->owner->error == 0)
    node->owner->error = cudaErrorMemoryAllocation;
  emu_changed();
}

static void chain_take(struct node_run *node, void *argument) {
  struct chain *chain = (struct chain *)argument;
  if (chain->next == NULL) chain->next = node;
  else node_hand_over(node);
}

static int node_perform(struct node_run *node, bool *outside) {
  int error = 0;
  const struct emu_work *work = node_work(node);
  *outside = work->kind == WORK_KERNEL || work->kind == WORK_HOST;
  if (node->turn.run != NULL) {
    emu_unlock();
    error = node->turn.ops->execute(node->turn.run);
    emu_lock();
  } else {
    node_work_perform(node);
  }
  *outside = false;
  return error;
}

static void chain_carry_out(struct chain *chain) {
  while (chain->next != NULL && !pool.stopping) {
    struct node_run *node = chain->next;
    chain->next = NULL;
    int error = node_perform(node, chain->outside);
    if (node_ended(node, error, chain_take, chain)) emu_changed();
  }
}

static bool worker_wanted(void *argument) {
  (void)argument;
  return pool.head != NULL || pool.stopping;
}

static void *worker_body(void *argument) {
  struct worker *worker = (struct worker *)argument;
  emu_lock();
  while (!pool.stopping) {
    struct node_run *node = pool.head;
    if (node == NULL) {
      pool.idle_count++;
      emu_wait(worker_wanted, NULL, 0);
      pool.idle_count--;
      continue;
    }
    pool.head = node->next;
    if (pool.head == NULL) pool.tail = NULL;
    pool.queued_count--;
    struct chain chain = {node, &worker->outside};
    chain_carry_out(&chain);
  }
  emu_changed();
  emu_unlock();
  return NULL;
}

/* If the system gives no more threads, the node stays queued until a worker is free, although a collective
 * may then hang. False without memory: then the graph's launch fails.
 */
static bool worker_start(void) {
  struct worker *worker = (struct worker *)os_alloc(sizeof *worker);
  if (worker == NULL) return false;
  if (!os_thread_start_named(&worker->thread, "tutti-graph", worker_body, worker)) {
    os_free(worker);
    return true;
  }
  worker->next = pool.workers;
  pool.workers = worker;
  return true;
}

static bool run_over(void *argument) {
  return ((const struct emu_graph_run *)argument)->remaining == 0 || pool.stopping;
}

int emu_graph_run_execute(struct emu_graph_run *run) {
  struct chain chain = {NULL, &run->stream->thread_outside};
  for (uint32_t i = 0; i < run->exec->node_count; i++) {
    if (run->nodes[i].waiting_for == 0) chain_take(&run->nodes[i], &chain);
  }
  chain_carry_out(&chain);
  while (!run_over(run)) emu_wait(run_over, run, 0);
  return run->error;
}

bool emu_graph_run_over(const struct emu_graph_run *run) { return run->remaining == 0; }

bool emu_graph_workers_inside(void) {
  for (const struct worker *worker = pool.workers; worker != NULL; worker = worker->next) {
    if (worker->outside) return false;
  }
  return true;
}

void emu_graph_workers_stop(bool stop) {
  pool.stopping = stop;
  emu_changed();
}

void emu_graph_workers_forked(void) {
  while (pool.workers != NULL) {
    struct worker *worker = pool.workers;
    pool.workers = worker->next;
    os_free(worker);
  }
  pool.idle_count = 0;
  pool.stopping = false;
}

void emu_graph_workers_join(void) {
  while (pool.workers != NULL) {
    struct worker *worker = pool.workers;
    pool.workers = worker->next;
    if (worker->outside) {
      pthread_detach(worker->thread); /* still reads its struct, which is therefore left */
      continue;
    }
    emu_unlock();
    os_thread_join(worker->thread);
    emu_lock();
    os_free(worker);
  }
}

/* ---- life ---- */

static bool node_enqueue(struct node_run *node) {
  const struct emu_work *work = node_work(node);
  if (work->kind != WORK_KERNEL) return true;
  node->turn.ops = work->as.kernel->ops;
  node->turn.run = node->turn.ops->enqueue(work->as.kernel);
  return node->turn.run != NULL;
}

static void node_init(struct emu_graph_run *run, uint32_t node_index) {
  struct node_run *node = &run->nodes[node_index];
  const struct emu_stream *stream = run->stream;
  node->owner = run;
  node->node_index = node_index;
  node->waiting_for = run->exec->nodes[node_index].dependency_count;
  node->turn.actor = &node->actor;
  emu_actor_init(
      &node->actor, &node_actor_ops,
      emu_key(EMU_KEY_STREAM, stream->device_index, stream->stream_index, (uint64_t)node_index + 1));
}

int emu_graph_run_new(struct emu_graph_exec *exec, struct emu_stream *stream, struct emu_graph_run **result) {
  struct emu_graph_run *run = (struct emu_graph_run *)os_alloc(sizeof *run);
  if (run == NULL) return cudaErrorMemoryAllocation;
  run->exec = exec;
  run->stream = stream;
  run->behind = emu_race_mark(stream);
  exec->reference_count++;
  run->nodes = (struct node_run *)os_alloc(exec->node_count * sizeof *run->nodes);
  bool complete = run->nodes != NULL;
  for (uint32_t i = 0; complete && i < exec->node_count; i++) node_init(run, i);
  if (complete) run->remaining = exec->node_count;
  for (uint32_t i = 0; complete && i < exec->node_count; i++) complete = node_enqueue(&run->nodes[i]);
  if (!complete) {
    emu_graph_run_free(run);
    return cudaErrorMemoryAllocation;
  }
  *result = run;
  return 0;
}

/* Backwards, so that each kernel that a failed launch removes is the last of its rank's launches. */
void emu_graph_run_free(struct emu_graph_run *run) {
  for (uint32_t i = run->exec->node_count; run->nodes != NULL && i-- > 0;) node_retire(&run->nodes[i]);
  emu_graph_exec_drop(run->exec);
  emu_race_point_drop(&run->behind);
  os_free(run->nodes);
  os_free(run);
}
