/* oracle.h: what a collective must yield, computed naively and apart from the library: inputs that are a pure
 * function of (seed, rank, index), expected outputs in integers or double precision, and a bound on what
 * rounding may change. Shared by the benchmark and the tests. Includes nothing of the library but nccl.h, so
 * that a fault there cannot hide here too.
 *
 * Inputs. Integers: random bits of full width; sums and products wrap, so any order gives the same bits and
 * the comparison is exact (factors of a product are odd, or a few of them would make it zero). Floats: most
 * elements are small whole numbers, of which at most 2^p are non-zero for a type with p significant bits, so
 * that every partial sum is exact in every order; then the tolerance is 0 as well. One element in four has a
 * random significand, and its sum is held to the bound below. Moves (all_gather and the like): random bits,
 * NaNs included, compared as bits.
 *
 * Tolerance. For n terms summed in any order with unit roundoff u = 2^-p,
 *   |computed - exact| <= ((1 + u)^(n-1) - 1) * sum |x_i|
 * (Higham, Accuracy and Stability of Numerical Algorithms, 2nd ed., section 4.2), with one more
 * factor (1 + u) for a pre-multiplication and one for the rounded factor itself (avg), and half the smallest
 * subnormal for each operation that may underflow. The oracle's own double arithmetic adds n * 2^-52 of the
 * same sum. */
#ifndef TUTTI_SIM_ORACLE_H
#define TUTTI_SIM_ORACLE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "nccl.h"

enum collective_id {
  COLLECTIVE_ALL_REDUCE,
  COLLECTIVE_ALL_GATHER,
  COLLECTIVE_REDUCE_SCATTER,
  COLLECTIVE_BROADCAST,
  COLLECTIVE_REDUCE,
  COLLECTIVE_SENDRECV,
  COLLECTIVE_ALLTOALL,
  COLLECTIVE_GATHER,
  COLLECTIVE_SCATTER,
  COLLECTIVE_COUNT
};

enum oracle_op {
  ORACLE_SUM,
  ORACLE_PROD,
  ORACLE_MAX,
  ORACLE_MIN,
  ORACLE_AVG,
  ORACLE_MUL_SUM, /* ncclRedOpCreatePreMulSum with oracle_scalar() of each rank */
  ORACLE_OP_COUNT
};

struct oracle_case {
  enum collective_id collective;
  ncclDataType_t type;
  enum oracle_op op; /* ignored where nothing is reduced */
  uint32_t rank_count, root;
  size_t count; /* as the NCCL call takes it: of one rank's part where parts are gathered or scattered */
  uint64_t seed;
};

/* Bytes of one element; 0 for a value outside ncclDataType_t. */
size_t oracle_type_bytes(ncclDataType_t type);

/* Elements that this rank's send buffer holds and that its receive buffer gains; 0 where it takes no part. */
size_t oracle_send_count(const struct oracle_case *c, uint32_t rank);
size_t oracle_receive_count(const struct oracle_case *c, uint32_t rank);

/* Writes elements [first, first + count) of the rank's send buffer to `out`. */
void oracle_input(const struct oracle_case *c, uint32_t rank, size_t first, size_t count, void *out);

/* Writes the rank's factor of ORACLE_MUL_SUM, one element of the type, to `out`. */
void oracle_scalar(const struct oracle_case *c, uint32_t rank, void *out);

/* The first element that is wrong. */
struct oracle_mismatch {
  uint32_t rank;
  size_t index;
  double got, expected, tolerance; /* numbers; for moves the bits as numbers */
};

/* The expected elements of a part of an output: as many as stay in a core's cache while the outputs of many
 * ranks are compared with them. */
enum { ORACLE_PART = 16384 };
struct oracle_part {
  double values[ORACLE_PART], tolerances[ORACLE_PART]; /* of reduced floats */
  uint64_t bits[ORACLE_PART];                          /* of integers and moves */
};

/* True if all ranks expect the same output. */
bool oracle_is_shared(const struct oracle_case *c);

/* Computes the elements of the rank's output from `first` on, at most ORACLE_PART; returns how many. */
size_t oracle_expect(const struct oracle_case *c, uint32_t rank, size_t first, struct oracle_part *part);

/* Compares as many elements of an output with the part. Returns how many are out of tolerance; if there are
 * any, *first is set, but for its rank, and with an index that counts from the part's first element. */
uint64_t oracle_compare(const struct oracle_case *c, size_t count, const struct oracle_part *part,
                        const void *output, struct oracle_mismatch *first);

/* Compares the outputs of several ranks, outputs[i] being that of ranks[i] (oracle_receive_count elements).
 * Returns how many elements are out of tolerance; *first is set when it is not 0 (first may be NULL). */
uint64_t oracle_check(const struct oracle_case *c, const uint32_t *ranks, const void *const *outputs,
                      uint32_t output_count, struct oracle_mismatch *first);

#endif
