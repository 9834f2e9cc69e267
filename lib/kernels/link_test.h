/* link_test.h: shared by the host code and the kernels of a link's self-test. Plain C, compiled by gcc and by
 * nvcc. The test stores a pattern and then a flag from one device into memory of another; a kernel on the
 * other device polls the flag for a bounded time, and compares. It knows nothing of communicators. */
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
  LINK_TEST_WRONG,  /* the flag arrived, but the pattern is wrong */
  LINK_TEST_SILENT, /* no flag arrived in time */
  LINK_TEST_UNKNOWN /* the devices were busy or failed; set by the host, never by a kernel */
};

/* Host memory; the kernel writes `number`, the host's number of the check, last. */
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
/* Loads both kernels on the current device, so that no launch does it. Returns a cudaError. */
int link_test_load(void);
#ifdef __cplusplus
}
#endif

/* In link_test.c. Tests the link from one device to another; peer access is enabled. False if the link is
 * broken, which is logged; true also if the devices are too busy for the test. Bounded: at most two
 * milliseconds of kernels and 40 of waiting. Called with cuda_mutex held; does not affect captures, because
 * it has its own streams. */
bool cuda_link_works(uint32_t from, uint32_t to);

#endif
