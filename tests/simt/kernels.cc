/* kernels.cc (simt): registers the backend's kernels for launches when the library is loaded, and fills
 * shared memory with garbage when a block begins. */
#include <cuda_runtime.h>

#include <link.h>

#include "kernels/launch.h"
#include "kernels/link_test.h"
#include "copy_engine.h"
#include "kernels.h"
#include "order.h"
#include "steps.h"
#include "watch.h"

#define LAUNCHED(CALL)             \
  CALL(ll, launch)                 \
  CALL(ll128, launch)              \
  CALL(simple, launch)             \
  CALL(mixed, launch)              \
  CALL(ll_links, launch)           \
  CALL(links, launch)              \
  CALL(direct_ll, launch)          \
  CALL(direct_links, launch)       \
  CALL(direct_once, launch)        \
  CALL(direct_once_lines, launch)  \
  CALL(direct_once_links, launch)  \
  CALL(bulk, launch)               \
  CALL(direct_simple, launch_long) \
  CALL(direct_pair, launch_long)

extern "C" {
#define DECLARED(name, type) void tutti_kernel_##name(const struct type);
LAUNCHED(DECLARED)
void tutti_link_test_send(struct link_test_buffer *buffer, uint64_t seed);
void tutti_link_test_check(const struct link_test_buffer *buffer, uint64_t seed, uint64_t number,
                           uint64_t patience_ns, struct link_test_finding *finding);
}

#define CALLED(name, type) \
  static void call_##name(void **parameters) { tutti_kernel_##name(*(const struct type *)parameters[0]); }
LAUNCHED(CALLED)

static void call_send(void **parameters) {
  tutti_link_test_send(*(struct link_test_buffer **)parameters[0], *(uint64_t *)parameters[1]);
}

static void call_check(void **parameters) {
  tutti_link_test_check(*(const struct link_test_buffer **)parameters[0], *(uint64_t *)parameters[1],
                        *(uint64_t *)parameters[2], *(uint64_t *)parameters[3],
                        *(struct link_test_finding **)parameters[4]);
}

#define ROW(name, type) {#name, (const void *)tutti_kernel_##name, call_##name, {sizeof(struct type)}},
static const struct simt_kernel rows[] = {
    LAUNCHED(ROW){"link_test_send", (const void *)tutti_link_test_send, call_send, {8, 8}},
    {"link_test_check", (const void *)tutti_link_test_check, call_check, {8, 8, 8, 8, 8}}};

/* Shared memory is this library's thread-local memory, which is zeroed in a new thread. That of a GPU's block
 * has what earlier blocks left. */
static thread_local volatile char shared_touched;

static void kernel_shared_begin(void *memory, size_t bytes) {
  memset(memory, 0xd1, bytes);
  copy_engine_declared(memory, bytes);
  order_forget(memory, bytes);
  watch_ignore(memory, bytes);
}

static int shared_fill(struct dl_phdr_info *object, size_t size, void *unused) {
  const ElfW(Addr) mine = (ElfW(Addr))rows;
  bool is_mine = false;
  (void)size, (void)unused;
  for (int i = 0; i < object->dlpi_phnum; i++) {
    const ElfW(Phdr) *part = &object->dlpi_phdr[i];
    const ElfW(Addr) begin = object->dlpi_addr + part->p_vaddr;
    is_mine |= part->p_type == PT_LOAD && mine >= begin && mine < begin + part->p_memsz;
  }
  for (int i = 0; is_mine && i < object->dlpi_phnum; i++)
    if (object->dlpi_phdr[i].p_type == PT_LOAD)
      watch_ignore((const void *)(object->dlpi_addr + object->dlpi_phdr[i].p_vaddr),
                   object->dlpi_phdr[i].p_memsz);
  for (int i = 0; is_mine && i < object->dlpi_phnum; i++)
    if (object->dlpi_phdr[i].p_type == PT_TLS && object->dlpi_tls_data != NULL)
      kernel_shared_begin(object->dlpi_tls_data, object->dlpi_phdr[i].p_memsz);
  return is_mine;
}

static void begin_block(void) {
  shared_touched = 1; /* makes this thread's copy */
  dl_iterate_phdr(shared_fill, NULL);
}

static struct offer {
  offer() {
    simt_kernels_offer(rows, sizeof rows / sizeof *rows, begin_block);
    watch_offer(&steps_watcher);
  }
} offered;
