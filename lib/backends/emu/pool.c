/* pool.c: threads that run blocks in threads mode. An idle thread is reused; if there is none, a new one is
 * started, so that all requested blocks run at once. The threads end when the library is unloaded. */
#include "backends/emu/block.h"
#include "base/os.h"

struct pool_thread {
  os_thread thread;
  os_cond wake;
  void (*function)(void *argument); /* NULL = idle */
  void *argument;
  struct pool_thread *next, *next_idle;
};

static struct {
  os_mutex lock;
  struct pool_thread *threads, *idle;
  bool ending;
} pool = {.lock = OS_MUTEX_INITIALIZER};

static void *pool_thread_body(void *argument) {
  struct pool_thread *self = (struct pool_thread *)argument;
  os_mutex_lock(&pool.lock);
  while (!pool.ending) {
    if (self->function == NULL) {
      os_cond_wait(&self->wake, &pool.lock);
      continue;
    }
    os_mutex_unlock(&pool.lock);
    self->function(self->argument);
    os_mutex_lock(&pool.lock);
    self->function = NULL;
    self->next_idle = pool.idle;
    pool.idle = self;
  }
  os_mutex_unlock(&pool.lock);
  return NULL;
}

static bool pool_grow(void (*function)(void *argument), void *argument) {
  struct pool_thread *fresh = (struct pool_thread *)os_alloc(sizeof *fresh);
  if (fresh == NULL) return false;
  os_cond_init(&fresh->wake);
  fresh->function = function;
  fresh->argument = argument;
  if (!os_thread_start_named(&fresh->thread, "tutti-lane", pool_thread_body, fresh)) {
    os_cond_destroy(&fresh->wake);
    os_free(fresh);
    return false;
  }
  fresh->next = pool.threads;
  pool.threads = fresh;
  return true;
}

bool emu_pool_run(void (*function)(void *argument), void *argument) {
  bool given = true;
  os_mutex_lock(&pool.lock);
  struct pool_thread *idle = pool.idle;
  if (idle != NULL) {
    pool.idle = idle->next_idle;
    idle->function = function;
    idle->argument = argument;
    os_cond_broadcast(&idle->wake);
  } else {
    given = pool_grow(function, argument);
  }
  os_mutex_unlock(&pool.lock);
  return given;
}

void emu_pool_forked(void) {
  static const os_mutex fresh = OS_MUTEX_INITIALIZER;
  pool.lock = fresh;
  pool.idle = NULL;
  while (pool.threads != NULL) {
    struct pool_thread *thread = pool.threads;
    pool.threads = thread->next;
    os_free(thread);
  }
}

__attribute__((destructor)) static void pool_end(void) {
  os_mutex_lock(&pool.lock);
  pool.ending = true;
  struct pool_thread *threads = pool.threads;
  for (struct pool_thread *thread = threads; thread != NULL; thread = thread->next)
    os_cond_broadcast(&thread->wake);
  os_mutex_unlock(&pool.lock);
  while (threads != NULL) {
    struct pool_thread *next = threads->next;
    os_thread_join(threads->thread);
    os_cond_destroy(&threads->wake);
    os_free(threads);
    threads = next;
  }
}
