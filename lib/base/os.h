/* os.h: the one door to the world: memory, clock, environment, files, threads. Only this module and the
 * backends may call the corresponding libc functions. Memory calls are counted and can be made to fail, so
 * that tests can prove that the k-th failure of any k ends in a clear error and leaks nothing. */
#ifndef TUTTI_BASE_OS_H
#define TUTTI_BASE_OS_H

#include <pthread.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Zeroed memory of `bytes` (at least one byte is reserved), aligned to 16; NULL when there is none. */
void *os_alloc(size_t bytes);
/* Grows or shrinks; the new part is NOT zeroed. On failure NULL, and the old block stays. */
void *os_realloc(void *pointer, size_t bytes);
void os_free(void *pointer); /* NULL is allowed */
char *os_strdup(const char *text);
/* Zeroed pages, physically taken only when touched; for FIFO buffers and emulated device memory. NULL when
 * there are none. */
void *os_pages_map(size_t bytes);
void os_pages_unmap(void *pointer, size_t bytes);
/* Bytes of this thread's last allocation that failed, 0 when none has since the last time it was asked. */
size_t os_alloc_failed_bytes(void);
void os_descriptor_close(int descriptor);

/* Fault injection and accounting for tests. fail_at(k): the k-th coming allocation (counted from 1) and no
 * other fails; 0 turns it off. Both os_alloc and os_pages_map count. */
void os_alloc_fail_at(uint64_t k);
uint64_t os_alloc_count(void); /* allocations tried since start */
uint64_t os_alloc_live(void);  /* blocks not yet freed */

uint64_t os_time_ns(void);            /* monotonic */
uint64_t os_entropy(void);            /* 64 unpredictable bits, for unique ids only */
const char *os_env(const char *name); /* getenv */
const char *const *os_environ(void);  /* NULL-terminated "NAME=value" list */
void os_sleep_ms(unsigned ms);
void os_yield(void);
/* The name, without folders, of the file that code at this address comes from, and how far behind the place
 * where that was mapped it lies: what addr2line asks for. False where it is of no file. */
bool os_code_file(const void *address, char *name, size_t name_bytes, uint64_t *offset);
uint32_t os_thread_count(void); /* threads of this process now; 1 when it cannot be told */
uint32_t os_core_count(void);   /* cores that this process may use, at least 1 */
/* Most bytes of a file of this process (ulimit -f), UINT64_MAX: any; growing one beyond ends it by a signal.
 */
uint64_t os_file_bytes_most(void);
/* Threads that os_thread_count leaves out from now on (or counts again, below 0): they only serve others, and
 * nothing here will ever move because of them. */
void os_thread_note(int more);
/* Changes in the child of a fork, and costs no call of the system: whoever notes it can tell later whether it
 * is still in the same process. */
uint32_t os_fork_count(void);
/* As atexit: once the program has returned from main, or called exit. */
void os_at_exit(void (*function)(void));
/* As pthread_atfork. */
void os_at_fork(void (*before)(void), void (*parent)(void), void (*child)(void));
int os_pid(void);
long os_tid(void);
/* A process, told apart from later ones that have its number. Plain data: another process may ask. */
struct os_process {
  uint64_t realm; /* the namespace that numbers it; 0: it cannot be told */
  uint64_t born;  /* ticks since boot */
  int32_t number;
};
void os_process_self(struct os_process *process);
/* True when it has certainly ended; false also for processes that this one cannot see. */
bool os_process_gone(const struct os_process *process);
void os_host_name(char *out, size_t out_bytes);
/* Reads a whole file into a fresh zero-terminated os_alloc block (*bytes without the zero, may be NULL);
 * NULL with errno set when it cannot be read. */
char *os_file_read(const char *path, size_t *bytes);
/* The same, but a file of more than `bytes_most` fails with EFBIG. */
char *os_file_read_most(const char *path, size_t bytes_most, size_t *bytes);
/* Replaces a file's contents; false with errno set when it cannot be written. */
bool os_file_write(const char *path, const char *text, size_t bytes);

/* Threads: thin names over pthreads. A failed creation returns false. */
typedef pthread_mutex_t os_mutex;
typedef pthread_cond_t os_cond;
#define OS_MUTEX_INITIALIZER PTHREAD_MUTEX_INITIALIZER
void os_mutex_init(os_mutex *mutex);
void os_mutex_destroy(os_mutex *mutex);
void os_mutex_lock(os_mutex *mutex);
bool os_mutex_try_lock(os_mutex *mutex); /* false when another thread has it */
void os_mutex_unlock(os_mutex *mutex);
void os_cond_init(os_cond *cond); /* waits measure the monotonic clock */
void os_cond_destroy(os_cond *cond);
void os_cond_wait(os_cond *cond, os_mutex *mutex);
bool os_cond_wait_until(os_cond *cond, os_mutex *mutex, uint64_t deadline_ns); /* false at the deadline */
void os_cond_broadcast(os_cond *cond);
typedef pthread_t os_thread;
bool os_thread_start(os_thread *thread, void *(*body)(void *), void *argument);
void os_thread_join(os_thread thread);
void os_thread_detach(os_thread thread); /* it ends by itself; nobody joins it */

#endif
