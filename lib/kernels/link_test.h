/* link_test.h: what the host half and the kernels of a link's self-test share. Plain C, compiled by gcc and
 * by nvcc. The test stores a pattern from one device into memory of another, and a flag behind it; a kernel
 * on the other looks for the flag, for a bounded time, and compares. It knows nothing of communicators. */
#ifndef TUTTI_KERNELS_LINK_TEST_H
#define TUTTI_KERNELS_LINK_TEST_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define LINK_TEST_WORDS 4096 /* of 16 bytes, each different */

/* Memory of the receiving device. */
struct link_test_buffer {
  uint32_t words[LINK_TEST_WORDS][4];
  uint64_t flag; /* the pattern's seed when all of it has been stored */
};

enum link_test_outcome {
  LINK_TEST_OK,
  LINK_TEST_WRONG,  /* the flag came, but not the pattern */
  LINK_TEST_SILENT, /* no flag came in time */
  LINK_TEST_UNKNOWN /* the devices were busy, or could not be asked: the host's word, never a kernel's */
};

/* Memory of the host; the kernel writes `number`, the host's number of the check, last. */
struct link_test_finding {
  uint32_t outcome, offset_bytes; /* of the first wrong word */
  uint32_t found[4], expected[4];
  uint64_t number;
};

#ifdef __cplusplus
extern "C" {
#endif
/* Each enqueues a kernel of one block on a stream of the current device: a cudaError. */
int link_test_send(struct link_test_buffer *buffer, uint64_t seed, void *stream);
int link_test_check(const struct link_test_buffer *buffer, uint64_t seed, uint64_t number,
                    uint64_t patience_ns, struct link_test_finding *finding, void *stream);
/* Loads both onto the current device, so that no launch has to. A cudaError. */
int link_test_load(void);
#ifdef __cplusplus
}
#endif

/* link_test.c. Tries the link from one device to another, whose peer access is on. False when it is broken,
 * which the log then says; true also where the devices are too busy to tell. Bounded: at most two
 * milliseconds of kernels and 40 of waiting. Called with cuda_mutex held; disturbs no capture, having streams
 * of its own. */
bool cuda_link_works(uint32_t from, uint32_t to);

#endif
