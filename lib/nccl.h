/* nccl.h: the interface of NCCL 2.28.9 as tutti implements it: same names, values, layouts and symbols, so
 * that a program built against either library runs with the other. Compiles alone as C11 and as C++17, with
 * or without a CUDA toolkit.
 *
 * What holds for every function:
 * - It returns ncclSuccess or the code of the first thing that went wrong; ncclGetLastError() has the
 *   sentence. Outputs are written only on success, and when a non-blocking communicator answers
 *   ncclInProgress.
 * - ncclInvalidArgument: a value can never be right (a NULL or foreign communicator, a rank out of range), or
 *   the communicator is still being made. ncclInvalidUsage: the value is fine, the situation is not (a group
 *   never opened, a revoked communicator, two ranks on one device). ncclSystemError: memory is out, or the
 *   system refused. ncclRemoteError: another rank failed or did not come. ncclUnhandledCudaError: the
 *   device's runtime failed. A communicator with an asynchronous error answers every call but the destroying
 *   ones with that error.
 * - Counts are elements, not bytes. Buffers are device memory of the communicator's device. Calls enqueue
 *   work on the stream and return; the data is there when the stream gets there.
 * - All ranks of a communicator issue the same operations in the same order. One communicator is used by one
 *   thread at a time; different ones by any number of threads.
 * - Each has a twin with a leading p. ncclX is a weak symbol over pncclX, so that a profiler can put itself
 *   in between. */
#ifndef TUTTI_NCCL_H
#define TUTTI_NCCL_H
/* The guard of NVIDIA's header: whichever comes first stands, the two never meet. */
#ifndef NCCL_H_
#define NCCL_H_

#include <limits.h>
#include <stddef.h>

#if defined(__has_include)
#if __has_include(<cuda_runtime.h>)
#include <cuda_runtime.h>
#define TUTTI_HAS_CUDA_RUNTIME 1
#if __has_include(<cuda_fp16.h>)
#include <cuda_fp16.h>
#endif
#if __has_include(<cuda_bf16.h>)
#include <cuda_bf16.h>
#endif
#if defined(__cplusplus) && __has_include(<cuda_fp8.h>)
#include <cuda_fp8.h>
#endif
#endif
#endif
#ifndef TUTTI_HAS_CUDA_RUNTIME
typedef struct CUstream_st *cudaStream_t;
#endif

#define NCCL_MAJOR 2
#define NCCL_MINOR 28
#define NCCL_PATCH 9
#define NCCL_SUFFIX ""

/* One number for a version: until 2.8 thousands and hundreds, from 2.9 on ten thousands and hundreds. */
#define NCCL_VERSION(X, Y, Z) \
  (((X) <= 2 && (Y) <= 8) ? (X) * 1000 + (Y) * 100 + (Z) : (X) * 10000 + (Y) * 100 + (Z))
#define NCCL_VERSION_CODE 22809

#ifdef __cplusplus
extern "C" {
#endif
#if defined(__GNUC__)
#pragma GCC visibility push(default)
#endif

/* One rank's communicator. */
typedef struct ncclComm *ncclComm_t;
#define NCCL_COMM_NULL NULL

/* Memory that all ranks registered together. */
typedef struct ncclWindow_vidmem *ncclWindow_t;

/* Names a communicator that is about to be made. Opaque; pass the bytes to every rank. */
#define NCCL_UNIQUE_ID_BYTES 128
typedef struct {
  char internal[NCCL_UNIQUE_ID_BYTES];
} ncclUniqueId;

typedef enum {
  ncclSuccess = 0,
  ncclUnhandledCudaError = 1,
  ncclSystemError = 2,
  ncclInternalError = 3,
  ncclInvalidArgument = 4,
  ncclInvalidUsage = 5,
  ncclRemoteError = 6,
  ncclInProgress = 7,
  ncclNumResults = 8
} ncclResult_t;

/* "Not set" for the members of ncclConfig_t and ncclSimInfo_t. */
#define NCCL_CONFIG_UNDEF_INT INT_MIN
#define NCCL_CONFIG_UNDEF_PTR NULL
#define NCCL_UNDEF_FLOAT -1.0f

#define NCCL_SPLIT_NOCOLOR -1 /* color of a rank that joins no new communicator */

#define NCCL_WIN_DEFAULT 0x00
#define NCCL_WIN_COLL_SYMMETRIC 0x01
#define NCCL_WIN_REQUIRED_ALIGNMENT 4096 /* bytes */

#define NCCL_CTA_POLICY_DEFAULT 0x00
#define NCCL_CTA_POLICY_EFFICIENCY 0x01
#define NCCL_CTA_POLICY_ZERO 0x02

#define NCCL_SHRINK_DEFAULT 0x00
#define NCCL_SHRINK_ABORT 0x01 /* abort what runs on the parent first */

#define NCCL_REVOKE_DEFAULT 0x00

/* Wishes for one communicator. Start from NCCL_CONFIG_INITIALIZER; members left at "not set" get their
 * default, and the environment overrides both. A member out of range makes the call fail with
 * ncclInvalidArgument. */
typedef struct ncclConfig_v22800 {
  size_t size;              /* of the struct as the caller was built; set by the initializer */
  unsigned int magic;       /* 0xcafebeef */
  unsigned int version;     /* NCCL_VERSION_CODE as the caller was built; younger members are ignored */
  int blocking; /* 1 (default): calls return when done. 0: init, split, finalize answer ncclInProgress */
  int cgaClusterSize;       /* blocks of a cluster, 0..8 (default 4) */
  int minCTAs;              /* least blocks, that is channels, 1..64 (default 1) */
  int maxCTAs;              /* most blocks, minCTAs..64 (default 64) */
  const char *netName;      /* network to use */
  int splitShare;           /* 1: children of a split share the parent's resources (default 0) */
  int trafficClass;         /* of the network, 0 or more */
  const char *commName;     /* for logs and errors; copied */
  int collnetEnable;        /* 0 or 1 */
  int CTAPolicy;            /* NCCL_CTA_POLICY_* */
  int shrinkShare;          /* 0 or 1 */
  int nvlsCTAs;             /* 1 or more */
  int nChannelsPerNetPeer;  /* 1 or more */
  int nvlinkCentricSched;   /* 0 or 1 */
} ncclConfig_t;

#define NCCL_CONFIG_INITIALIZER                                                           \
  {                                                                                       \
    sizeof(ncclConfig_t), 0xcafebeef, NCCL_VERSION(NCCL_MAJOR, NCCL_MINOR, NCCL_PATCH),   \
    NCCL_CONFIG_UNDEF_INT /* blocking */, NCCL_CONFIG_UNDEF_INT /* cgaClusterSize */,     \
    NCCL_CONFIG_UNDEF_INT /* minCTAs */, NCCL_CONFIG_UNDEF_INT /* maxCTAs */,             \
    NCCL_CONFIG_UNDEF_PTR /* netName */, NCCL_CONFIG_UNDEF_INT /* splitShare */,          \
    NCCL_CONFIG_UNDEF_INT /* trafficClass */, NCCL_CONFIG_UNDEF_PTR /* commName */,       \
    NCCL_CONFIG_UNDEF_INT /* collnetEnable */, NCCL_CONFIG_UNDEF_INT /* CTAPolicy */,     \
    NCCL_CONFIG_UNDEF_INT /* shrinkShare */, NCCL_CONFIG_UNDEF_INT /* nvlsCTAs */,        \
    NCCL_CONFIG_UNDEF_INT /* nChannelsPerNetPeer */,                                      \
    NCCL_CONFIG_UNDEF_INT /* nvlinkCentricSched */                                        \
  }

/* What ncclGroupSimulateEnd() answers. Start from NCCL_SIM_INFO_INITIALIZER. */
typedef struct ncclSimInfo_v22200 {
  size_t size;              /* of the struct as the caller was built */
  unsigned int magic;       /* 0x74685283 */
  unsigned int version;
  float estimatedTime;      /* microseconds */
} ncclSimInfo_t;

#define NCCL_SIM_INFO_INITIALIZER                                                                       \
  {                                                                                                     \
    sizeof(ncclSimInfo_t), 0x74685283, NCCL_VERSION(NCCL_MAJOR, NCCL_MINOR, NCCL_PATCH),                \
    NCCL_UNDEF_FLOAT                                                                                    \
  }

/* Reduction operators; ncclRedOpCreatePreMulSum() makes more, with values from ncclNumOps on. Avg of integers
 * rounds the quotient towards zero. */
typedef enum { ncclNumOps_dummy = 5 } ncclRedOp_dummy_t;
typedef enum {
  ncclSum = 0,
  ncclProd = 1,
  ncclMax = 2,
  ncclMin = 3,
  ncclAvg = 4,
  ncclNumOps = 5,
  ncclMaxRedOp = 0x7fffffff >> (32 - 8 * sizeof(ncclRedOp_dummy_t))
} ncclRedOp_t;

typedef enum {
  ncclInt8 = 0, ncclChar = 0,
  ncclUint8 = 1,
  ncclInt32 = 2, ncclInt = 2,
  ncclUint32 = 3,
  ncclInt64 = 4,
  ncclUint64 = 5,
  ncclFloat16 = 6, ncclHalf = 6,
  ncclFloat32 = 7, ncclFloat = 7,
  ncclFloat64 = 8, ncclDouble = 8,
  ncclBfloat16 = 9,
  ncclFloat8e4m3 = 10,
  ncclFloat8e5m2 = 11,
  ncclNumTypes = 12
} ncclDataType_t;

/* Where the scalar of an operator lives, and so when it is read. */
typedef enum {
  ncclScalarDevice = 0,       /* device memory; read by each call that uses the operator */
  ncclScalarHostImmediate = 1 /* host memory; read before ncclRedOpCreatePreMulSum() returns */
} ncclScalarResidence_t;

/* ---- Library ---- */

/* NCCL_VERSION_CODE of the library, not of the header. */
ncclResult_t ncclGetVersion(int *version);
ncclResult_t pncclGetVersion(int *version);

/* Constant text of a code, never NULL. */
const char *ncclGetErrorString(ncclResult_t result);
const char *pncclGetErrorString(ncclResult_t result);

/* The process's last warning or error as one sentence, "" when there was none; valid until this thread asks
 * again. Why a communicator broke stays, whatever its links say after that. `comm` is not looked at and may
 * be NULL. */
const char *ncclGetLastError(ncclComm_t comm);
const char *pncclGetLastError(ncclComm_t comm);

/* Reads NCCL_DEBUG and its kin anew. */
__attribute__((deprecated("call nothing: the log is configured by the environment before the first use")))
void ncclResetDebugInit(void);
__attribute__((deprecated("call nothing: the log is configured by the environment before the first use")))
void pncclResetDebugInit(void);

/* Memory of the calling thread's current device, `size` bytes, fit for every transport:
 * networks that can send from it and receive into it do so, as if every communicator had registered it. 0
 * bytes give NULL. */
ncclResult_t ncclMemAlloc(void **ptr, size_t size);
ncclResult_t pncclMemAlloc(void **ptr, size_t size);
/* Frees what ncclMemAlloc() gave, which nothing else may free; NULL is allowed. */
ncclResult_t ncclMemFree(void *ptr);
ncclResult_t pncclMemFree(void *ptr);

/* ---- Making communicators ---- */

/* A fresh id. One rank gets it, all ranks of the new communicator use it, once. */
ncclResult_t ncclGetUniqueId(ncclUniqueId *uniqueId);
ncclResult_t pncclGetUniqueId(ncclUniqueId *uniqueId);

/* Makes rank `rank` of `nranks` on the calling thread's current device. Collective: a blocking call returns
 * when all ranks have come, so that one thread that drives several ranks puts the calls into one group. Ranks
 * come in any order, from any threads of this process. nranks < 1, rank outside [0, nranks), not an id:
 * ncclInvalidArgument. Two ranks on one device, a rank twice, an id of another process or used before:
 * ncclInvalidUsage, for every rank that came. Ranks that stay away longer than TUTTI_INIT_TIMEOUT_SECONDS:
 * ncclRemoteError, naming them. */
ncclResult_t ncclCommInitRank(ncclComm_t *comm, int nranks, ncclUniqueId commId, int rank);
ncclResult_t pncclCommInitRank(ncclComm_t *comm, int nranks, ncclUniqueId commId, int rank);

/* The same with a config; NULL = all defaults. With config->blocking = 0 it sets *comm, answers
 * ncclInProgress, and ncclCommGetAsyncError() tells when the communicator is ready. */
ncclResult_t ncclCommInitRankConfig(ncclComm_t *comm, int nranks, ncclUniqueId commId, int rank,
                                    ncclConfig_t *config);
ncclResult_t pncclCommInitRankConfig(ncclComm_t *comm, int nranks, ncclUniqueId commId, int rank,
                                     ncclConfig_t *config);

/* The same with 1 <= nId <= nranks ids: every rank passes the same ids in the same order. */
ncclResult_t ncclCommInitRankScalable(ncclComm_t *newcomm, int nranks, int myrank, int nId,
                                      ncclUniqueId *commIds, ncclConfig_t *config);
ncclResult_t pncclCommInitRankScalable(ncclComm_t *newcomm, int nranks, int myrank, int nId,
                                       ncclUniqueId *commIds, ncclConfig_t *config);

/* All ranks of a communicator at once: comm[0..ndev), rank i on device devlist[i] (i when devlist is NULL).
 * ndev < 0 or a device that does not exist: ncclInvalidArgument; a device twice: ncclInvalidUsage. */
ncclResult_t ncclCommInitAll(ncclComm_t *comm, int ndev, const int *devlist);
ncclResult_t pncclCommInitAll(ncclComm_t *comm, int ndev, const int *devlist);

/* Collective over the parent: ranks of one color (0 or more) form a new communicator, ordered by key, then by
 * parent rank; NCCL_SPLIT_NOCOLOR gives *newcomm = NULL. config NULL = the parent's. Legal within a group. */
ncclResult_t ncclCommSplit(ncclComm_t comm, int color, int key, ncclComm_t *newcomm, ncclConfig_t *config);
ncclResult_t pncclCommSplit(ncclComm_t comm, int color, int key, ncclComm_t *newcomm, ncclConfig_t *config);

/* Collective over the survivors: a new communicator of all ranks but excludeRanksList[0..excludeRanksCount),
 * in the parent's order. NULL or empty list, a rank out of range, the caller in the list:
 * ncclInvalidArgument. NCCL_SHRINK_ABORT frees what is stuck on the parent first. */
ncclResult_t ncclCommShrink(ncclComm_t comm, int *excludeRanksList, int excludeRanksCount,
                            ncclComm_t *newcomm, ncclConfig_t *config, int shrinkFlags);
ncclResult_t pncclCommShrink(ncclComm_t comm, int *excludeRanksList, int excludeRanksCount,
                             ncclComm_t *newcomm, ncclConfig_t *config, int shrinkFlags);

/* ---- Ending communicators ---- */

/* Waits for all enqueued work of this rank (non-blocking: answers ncclInProgress until then); afterwards only
 * destroying is legal. NULL is allowed; a second call is ncclInvalidArgument. */
ncclResult_t ncclCommFinalize(ncclComm_t comm);
ncclResult_t pncclCommFinalize(ncclComm_t comm);

/* Finalizes if that was not done, and frees. NULL is allowed. The handle is gone whatever the result. */
ncclResult_t ncclCommDestroy(ncclComm_t comm);
ncclResult_t pncclCommDestroy(ncclComm_t comm);

/* Stops this rank's running kernels and frees. Legal in every state and from any thread, also while another
 * thread is stuck in a call on `comm`. Other ranks are not told; each aborts its own. NULL is allowed. */
ncclResult_t ncclCommAbort(ncclComm_t comm);
ncclResult_t pncclCommAbort(ncclComm_t comm);

/* Stops this rank's running kernels and keeps the communicator for ncclCommSplit(), ncclCommShrink() and
 * ncclCommDestroy(); other calls answer ncclInvalidUsage. revokeFlags other than NCCL_REVOKE_DEFAULT, a
 * second call, or a call after ncclCommFinalize(): ncclInvalidArgument. */
ncclResult_t ncclCommRevoke(ncclComm_t comm, int revokeFlags);
ncclResult_t pncclCommRevoke(ncclComm_t comm, int revokeFlags);

/* ---- Asking ---- */

/* *asyncError: ncclSuccess, ncclInProgress while the communicator is made or finalized, or the first error
 * that its kernels or its making met. Never blocks; polling it lets the library make progress. */
ncclResult_t ncclCommGetAsyncError(ncclComm_t comm, ncclResult_t *asyncError);
ncclResult_t pncclCommGetAsyncError(ncclComm_t comm, ncclResult_t *asyncError);

ncclResult_t ncclCommCount(const ncclComm_t comm, int *count);      /* ranks */
ncclResult_t pncclCommCount(const ncclComm_t comm, int *count);
ncclResult_t ncclCommCuDevice(const ncclComm_t comm, int *device);  /* device number of this rank */
ncclResult_t pncclCommCuDevice(const ncclComm_t comm, int *device);
ncclResult_t ncclCommUserRank(const ncclComm_t comm, int *rank);
ncclResult_t pncclCommUserRank(const ncclComm_t comm, int *rank);

/* ---- Registration ---- */

/* Announces buff[0..size) bytes for zero-copy use. Host memory is skipped: *handle = NULL. */
ncclResult_t ncclCommRegister(const ncclComm_t comm, void *buff, size_t size, void **handle);
ncclResult_t pncclCommRegister(const ncclComm_t comm, void *buff, size_t size, void **handle);
/* NULL is allowed; a handle that this communicator did not give: ncclInvalidUsage. */
ncclResult_t ncclCommDeregister(const ncclComm_t comm, void *handle);
ncclResult_t pncclCommDeregister(const ncclComm_t comm, void *handle);

/* The same by all ranks of the communicator; no rank waits for another. Host memory is skipped: *win = NULL,
 * with ncclSuccess: test the window, not the code. It brings what ncclCommRegister brings: kernels have no
 * calls for windows. NULL or empty buffer, unknown flags: ncclInvalidArgument. */
ncclResult_t ncclCommWindowRegister(ncclComm_t comm, void *buff, size_t size, ncclWindow_t *win,
                                    int winFlags);
ncclResult_t pncclCommWindowRegister(ncclComm_t comm, void *buff, size_t size, ncclWindow_t *win,
                                     int winFlags);
/* NULL is allowed; a window that this communicator did not give: ncclInvalidUsage. */
ncclResult_t ncclCommWindowDeregister(ncclComm_t comm, ncclWindow_t win);
ncclResult_t pncclCommWindowDeregister(ncclComm_t comm, ncclWindow_t win);

/* ---- Operators ---- */

/* An operator of `comm` for `datatype` alone: each rank's input times *scalar, then the sum. Its ranks may
 * have different scalars. Used with another type or communicator: ncclInvalidArgument. */
ncclResult_t ncclRedOpCreatePreMulSum(ncclRedOp_t *op, void *scalar, ncclDataType_t datatype,
                                      ncclScalarResidence_t residence, ncclComm_t comm);
ncclResult_t pncclRedOpCreatePreMulSum(ncclRedOp_t *op, void *scalar, ncclDataType_t datatype,
                                       ncclScalarResidence_t residence, ncclComm_t comm);
/* Legal as soon as the last call that names the operator has returned. Built-in or unknown:
 * ncclInvalidArgument. */
ncclResult_t ncclRedOpDestroy(ncclRedOp_t op, ncclComm_t comm);
ncclResult_t pncclRedOpDestroy(ncclRedOp_t op, ncclComm_t comm);

/* ---- Collectives. n = ranks, r = this rank; a count of 0 does nothing. Buffers may coincide as said and may
 * not overlap otherwise. A root outside [0, n), an unknown type or operator: ncclInvalidArgument. ---- */

/* recvbuff[count] = op over all ranks' sendbuff[count], on every rank. In place: sendbuff == recvbuff. */
ncclResult_t ncclAllReduce(const void *sendbuff, void *recvbuff, size_t count, ncclDataType_t datatype,
                           ncclRedOp_t op, ncclComm_t comm, cudaStream_t stream);
ncclResult_t pncclAllReduce(const void *sendbuff, void *recvbuff, size_t count, ncclDataType_t datatype,
                            ncclRedOp_t op, ncclComm_t comm, cudaStream_t stream);

/* The same on the root alone; elsewhere recvbuff is not used. In place at the root: sendbuff == recvbuff. */
ncclResult_t ncclReduce(const void *sendbuff, void *recvbuff, size_t count, ncclDataType_t datatype,
                        ncclRedOp_t op, int root, ncclComm_t comm, cudaStream_t stream);
ncclResult_t pncclReduce(const void *sendbuff, void *recvbuff, size_t count, ncclDataType_t datatype,
                         ncclRedOp_t op, int root, ncclComm_t comm, cudaStream_t stream);

/* recvbuff[count] = the root's sendbuff[count], on every rank; elsewhere sendbuff is not used.
 * In place: sendbuff == recvbuff. */
ncclResult_t ncclBroadcast(const void *sendbuff, void *recvbuff, size_t count, ncclDataType_t datatype,
                           int root, ncclComm_t comm, cudaStream_t stream);
ncclResult_t pncclBroadcast(const void *sendbuff, void *recvbuff, size_t count, ncclDataType_t datatype,
                            int root, ncclComm_t comm, cudaStream_t stream);

/* ncclBroadcast() in place. */
ncclResult_t ncclBcast(void *buff, size_t count, ncclDataType_t datatype, int root, ncclComm_t comm,
                       cudaStream_t stream);
ncclResult_t pncclBcast(void *buff, size_t count, ncclDataType_t datatype, int root, ncclComm_t comm,
                        cudaStream_t stream);

/* recvbuff[n * sendcount]: block i = rank i's sendbuff[sendcount]. In place:
 * sendbuff == recvbuff + r * sendcount. */
ncclResult_t ncclAllGather(const void *sendbuff, void *recvbuff, size_t sendcount, ncclDataType_t datatype,
                           ncclComm_t comm, cudaStream_t stream);
ncclResult_t pncclAllGather(const void *sendbuff, void *recvbuff, size_t sendcount, ncclDataType_t datatype,
                            ncclComm_t comm, cudaStream_t stream);

/* recvbuff[recvcount] = op over block r of all ranks' sendbuff[n * recvcount]. In place:
 * recvbuff == sendbuff + r * recvcount. */
ncclResult_t ncclReduceScatter(const void *sendbuff, void *recvbuff, size_t recvcount,
                               ncclDataType_t datatype, ncclRedOp_t op, ncclComm_t comm, cudaStream_t stream);
ncclResult_t pncclReduceScatter(const void *sendbuff, void *recvbuff, size_t recvcount,
                                ncclDataType_t datatype, ncclRedOp_t op, ncclComm_t comm,
                                cudaStream_t stream);

/* Block i of recvbuff[n * count] = block r of rank i's sendbuff[n * count]. Never in place. */
ncclResult_t ncclAlltoAll(const void *sendbuff, void *recvbuff, size_t count, ncclDataType_t datatype,
                          ncclComm_t comm, cudaStream_t stream);
ncclResult_t pncclAlltoAll(const void *sendbuff, void *recvbuff, size_t count, ncclDataType_t datatype,
                           ncclComm_t comm, cudaStream_t stream);

/* At the root: block i of recvbuff[n * count] = rank i's sendbuff[count]. In place at the root:
 * sendbuff == recvbuff + root * count. */
ncclResult_t ncclGather(const void *sendbuff, void *recvbuff, size_t count, ncclDataType_t datatype, int root,
                        ncclComm_t comm, cudaStream_t stream);
ncclResult_t pncclGather(const void *sendbuff, void *recvbuff, size_t count, ncclDataType_t datatype,
                         int root, ncclComm_t comm, cudaStream_t stream);

/* recvbuff[count] = block r of the root's sendbuff[n * count]. In place at the root:
 * recvbuff == sendbuff + root * count. */
ncclResult_t ncclScatter(const void *sendbuff, void *recvbuff, size_t count, ncclDataType_t datatype,
                         int root, ncclComm_t comm, cudaStream_t stream);
ncclResult_t pncclScatter(const void *sendbuff, void *recvbuff, size_t count, ncclDataType_t datatype,
                          int root, ncclComm_t comm, cudaStream_t stream);

/* ---- Point to point ---- */

/* sendbuff[count] to rank `peer`, which receives the same count and type. Messages of one pair match in the
 * order of their calls; calls that must progress together belong in one group. A count of 0 is a message. A
 * rank may send to itself when the receive is in the same group (else ncclInvalidUsage). */
ncclResult_t ncclSend(const void *sendbuff, size_t count, ncclDataType_t datatype, int peer, ncclComm_t comm,
                      cudaStream_t stream);
ncclResult_t pncclSend(const void *sendbuff, size_t count, ncclDataType_t datatype, int peer, ncclComm_t comm,
                       cudaStream_t stream);

/* recvbuff[count] from rank `peer`; the other half of ncclSend(). */
ncclResult_t ncclRecv(void *recvbuff, size_t count, ncclDataType_t datatype, int peer, ncclComm_t comm,
                      cudaStream_t stream);
ncclResult_t pncclRecv(void *recvbuff, size_t count, ncclDataType_t datatype, int peer, ncclComm_t comm,
                       cudaStream_t stream);

/* ---- Groups ---- */

/* From here on this thread's calls are only noted. Groups nest; the outermost end counts. */
ncclResult_t ncclGroupStart(void);
ncclResult_t pncclGroupStart(void);

/* Carries out everything noted: first communicators are made, then each communicator's operations are started
 * as one. When a call of the group failed, its code comes back here, and nothing of the group happens.
 * Without a start, or with streams of which only some are captured into a graph: ncclInvalidUsage. */
ncclResult_t ncclGroupEnd(void);
ncclResult_t pncclGroupEnd(void);

/* Ends the group without doing anything of it; simInfo->estimatedTime = predicted time of the operations,
 * microseconds. */
ncclResult_t ncclGroupSimulateEnd(ncclSimInfo_t *simInfo);
ncclResult_t pncclGroupSimulateEnd(ncclSimInfo_t *simInfo);

#if defined(__GNUC__)
#pragma GCC visibility pop
#endif
#ifdef __cplusplus
}
#endif

#endif
#endif
