/* nccl.h: the interface of NCCL 2.30.7 as tutti implements it: same names, values, layouts and symbols. A
 * program built against either library runs with the other. Compiles alone as C11 and as C++17, with or
 * without a CUDA toolkit.
 *
 * The following holds for every function:
 * - It returns ncclSuccess or the code of the first failure; ncclGetLastError() returns the message. Outputs
 *   are written only on success, and when a non-blocking communicator returns ncclInProgress.
 * - ncclInvalidArgument: an argument is never valid (a NULL or foreign communicator, a rank out of range), or
 *   the communicator is still being initialized. ncclInvalidUsage: the argument is valid but the situation
 *   does not allow the call (no open group, a revoked communicator, two ranks on one device).
 *   ncclSystemError: out of memory, or a system call failed. ncclRemoteError: another rank failed or did not
 *   join. ncclUnhandledCudaError: the device's runtime failed. After an asynchronous error, every call on
 *   the communicator returns that error, except the calls that destroy it.
 * - Counts are elements, not bytes. Buffers are device memory of the communicator's device. Calls enqueue
 *   work on the stream and return; the result is available once the stream has executed the work.
 * - All ranks of a communicator issue the same operations in the same order. Only one thread at a time may
 *   use a communicator; any number of threads may use different communicators.
 * - ncclX is a weak alias of pncclX, so that a profiler can interpose. */
#ifndef TUTTI_NCCL_H
#define TUTTI_NCCL_H
/* The include guard of NVIDIA's header: only the header that is included first takes effect. */
#ifndef NCCL_H_
#define NCCL_H_

#include <limits.h>
#include <stdint.h>
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
#define NCCL_MINOR 30
#define NCCL_PATCH 7
#define NCCL_SUFFIX ""

/* A version as one number: up to 2.8 the major number counts thousands, from 2.9 on ten thousands. */
#define NCCL_VERSION(X, Y, Z) (((X) <= 2 && (Y) <= 8) ? (X)*1000 + (Y)*100 + (Z) : (X)*10000 + (Y)*100 + (Z))
#define NCCL_VERSION_CODE 23007

#ifdef __cplusplus
extern "C" {
#endif
#if defined(__GNUC__)
#pragma GCC visibility push(default)
#endif

/* One rank's communicator. */
typedef struct ncclComm *ncclComm_t;
#define NCCL_COMM_NULL NULL

/* Memory that every rank of a communicator has registered as a window. */
typedef struct ncclWindow_vidmem *ncclWindow_t;

/* Identifies a communicator to be created. Opaque; pass the bytes to every rank. */
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
  ncclTimeout = 8, /* never returned: callers of NCCL 2.28 and before know eight codes */
  ncclNumResults = 9
} ncclResult_t;

/* "Not set" for members of ncclConfig_t and ncclSimInfo_t. */
#define NCCL_CONFIG_UNDEF_INT INT_MIN
#define NCCL_CONFIG_UNDEF_PTR NULL
#define NCCL_UNDEF_FLOAT -1.0f

#define NCCL_SPLIT_NOCOLOR -1 /* color of a rank that joins no new communicator */

#define NCCL_WIN_DEFAULT 0x00
#define NCCL_WIN_COLL_SYMMETRIC 0x01
#define NCCL_WIN_STRICT_ORDERING 0x02
#define NCCL_WIN_REQUIRED_ALIGNMENT 4096 /* bytes */

#define NCCL_CTA_POLICY_DEFAULT 0x00
#define NCCL_CTA_POLICY_EFFICIENCY 0x01
#define NCCL_CTA_POLICY_ZERO 0x02

#define NCCL_SHRINK_DEFAULT 0x00
#define NCCL_SHRINK_ABORT 0x01 /* abort what runs on the parent first */

#define NCCL_REVOKE_DEFAULT 0x00

#define NCCL_SUSPEND_MEM 0x01

/* Configuration of one communicator. Start from NCCL_CONFIG_INITIALIZER; a member left "not set" takes its
 * default, and the environment overrides both. If a member is out of range, the call fails with
 * ncclInvalidArgument. Members marked (-) have no effect: where one is set, the log says why
 * (NCCL_DEBUG=INFO). */
typedef struct ncclConfig_v23000 {
  size_t size;          /* sizeof(ncclConfig_t) in the caller's build; set by the initializer */
  unsigned int magic;   /* 0xcafebeef */
  unsigned int version; /* NCCL_VERSION_CODE of the caller's build; newer members are ignored */
  int blocking; /* 1 (default): calls return when done. 0: init, split, finalize return ncclInProgress */
  int cgaClusterSize;      /* thread blocks per cluster, 0..8 (default 4) */
  int minCTAs;             /* minimum number of blocks (one per channel), 1..64 (default 1) */
  int maxCTAs;             /* maximum number of blocks, minCTAs..64 (default 64) */
  const char *netName;     /* network of the process; ncclInvalidUsage if it cannot be this one */
  int splitShare;          /* (-) 1: children of a split share the parent's resources (default 0) */
  int trafficClass;        /* of its connections over networks, 0 or more: of RoCE 0..255 */
  const char *commName;    /* for logs and errors; copied */
  int collnetEnable;       /* 0 or 1 */
  int CTAPolicy;           /* NCCL_CTA_POLICY_*; ZERO acts, by copies within a node, EFFICIENCY does not */
  int shrinkShare;         /* (-) 0 or 1 */
  int nvlsCTAs;            /* (-) 1 or more */
  int nChannelsPerNetPeer; /* channels of a message between hosts, 1..64 (default 2) */
  int nvlinkCentricSched;  /* (-) 0 or 1 */
  int graphUsageMode;      /* (-) launches in graphs: 0 none, 1 one graph at a time, 2 mixed (default 2) */
  int numRmaCtx;           /* (-) contexts of one-sided calls, 1 or more (default 1) */
  int maxP2pPeers;         /* (-) most ranks that this one exchanges messages with, 1 or more */
  int graphStreamOrdering; /* (-) 1 (default): replays of graphs are ordered with the stream's other work */
} ncclConfig_t;

#define NCCL_CONFIG_INITIALIZER                                                                          \
  {                                                                                                      \
    sizeof(ncclConfig_t), 0xcafebeef, NCCL_VERSION(NCCL_MAJOR, NCCL_MINOR, NCCL_PATCH),                  \
        NCCL_CONFIG_UNDEF_INT /* blocking */, NCCL_CONFIG_UNDEF_INT /* cgaClusterSize */,                \
        NCCL_CONFIG_UNDEF_INT /* minCTAs */, NCCL_CONFIG_UNDEF_INT /* maxCTAs */,                        \
        NCCL_CONFIG_UNDEF_PTR /* netName */, NCCL_CONFIG_UNDEF_INT /* splitShare */,                     \
        NCCL_CONFIG_UNDEF_INT /* trafficClass */, NCCL_CONFIG_UNDEF_PTR /* commName */,                  \
        NCCL_CONFIG_UNDEF_INT /* collnetEnable */, NCCL_CONFIG_UNDEF_INT /* CTAPolicy */,                \
        NCCL_CONFIG_UNDEF_INT /* shrinkShare */, NCCL_CONFIG_UNDEF_INT /* nvlsCTAs */,                   \
        NCCL_CONFIG_UNDEF_INT /* nChannelsPerNetPeer */, NCCL_CONFIG_UNDEF_INT /* nvlinkCentricSched */, \
        NCCL_CONFIG_UNDEF_INT /* graphUsageMode */, NCCL_CONFIG_UNDEF_INT /* numRmaCtx */,               \
        NCCL_CONFIG_UNDEF_INT /* maxP2pPeers */, NCCL_CONFIG_UNDEF_INT /* graphStreamOrdering */         \
  }

/* Result of ncclGroupSimulateEnd(). Start from NCCL_SIM_INFO_INITIALIZER. */
typedef struct ncclSimInfo_v22200 {
  size_t size;        /* sizeof(ncclSimInfo_t) in the caller's build */
  unsigned int magic; /* 0x74685283 */
  unsigned int version;
  float estimatedTime; /* microseconds */
} ncclSimInfo_t;

#define NCCL_SIM_INFO_INITIALIZER \
  { sizeof(ncclSimInfo_t), 0x74685283, NCCL_VERSION(NCCL_MAJOR, NCCL_MINOR, NCCL_PATCH), NCCL_UNDEF_FLOAT }

/* Reduction operators. ncclRedOpCreatePreMulSum() creates more, with values from ncclNumOps on. ncclAvg of
 * integers rounds the quotient towards zero. */
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
  ncclInt8 = 0,
  ncclChar = 0,
  ncclUint8 = 1,
  ncclInt32 = 2,
  ncclInt = 2,
  ncclUint32 = 3,
  ncclInt64 = 4,
  ncclUint64 = 5,
  ncclFloat16 = 6,
  ncclHalf = 6,
  ncclFloat32 = 7,
  ncclFloat = 7,
  ncclFloat64 = 8,
  ncclDouble = 8,
  ncclBfloat16 = 9,
  ncclFloat8e4m3 = 10,
  ncclFloat8e5m2 = 11,
  ncclNumTypes = 12
} ncclDataType_t;

/* Where the scalar of an operator is stored, which decides when it is read. */
typedef enum {
  ncclScalarDevice = 0,       /* device memory; read when an operation that uses it begins on its stream */
  ncclScalarHostImmediate = 1 /* host memory; read before ncclRedOpCreatePreMulSum() returns */
} ncclScalarResidence_t;

/* ---- Library ---- */

/* NCCL_VERSION_CODE of the library, not of the header; or TUTTI_NCCL_VERSION, for programs that want
 * another. */
ncclResult_t ncclGetVersion(int *version);
ncclResult_t pncclGetVersion(int *version);

/* Constant text for a result code, never NULL. */
const char *ncclGetErrorString(ncclResult_t result);
const char *pncclGetErrorString(ncclResult_t result);

/* Text of the process's last warning or error, "" if there was none; valid until this thread's next call of
 * this function. The reason why a communicator failed is kept even if its connections report errors later.
 * `comm` is ignored and may be NULL. */
const char *ncclGetLastError(ncclComm_t comm);
const char *pncclGetLastError(ncclComm_t comm);

/* Reads NCCL_DEBUG and the related variables again. */
__attribute__((
    deprecated("call nothing: the log is configured by the environment before the first use"))) void
ncclResetDebugInit(void);
__attribute__((
    deprecated("call nothing: the log is configured by the environment before the first use"))) void
pncclResetDebugInit(void);

/* Allocates `size` bytes on the calling thread's current device, usable by every transport: networks that can
 * send from and receive into device memory do so, as if every communicator had registered it. If `size` is
 * 0, *ptr is NULL. */
ncclResult_t ncclMemAlloc(void **ptr, size_t size);
ncclResult_t pncclMemAlloc(void **ptr, size_t size);
/* Frees memory from ncclMemAlloc(); no other function may free that memory. NULL is allowed. */
ncclResult_t ncclMemFree(void *ptr);
ncclResult_t pncclMemFree(void *ptr);

/* ---- Making communicators ---- */

/* Creates a unique id. One rank calls it; all ranks of the new communicator use the id, once. */
ncclResult_t ncclGetUniqueId(ncclUniqueId *uniqueId);
ncclResult_t pncclGetUniqueId(ncclUniqueId *uniqueId);

/* Creates the communicator of rank `rank` of `nranks` on the calling thread's current device. Collective: a
 * blocking call returns once all ranks have joined, so a thread that drives several ranks puts the calls into
 * one group. Ranks join in any order, from any thread. ncclInvalidArgument: nranks < 1, rank outside
 * [0, nranks), or commId is not an id. ncclInvalidUsage, on every rank that joined: two ranks on one device,
 * a rank joined twice, or the id was used before or is valid in another process only. ncclRemoteError: some
 * ranks did not join within TUTTI_INIT_TIMEOUT_SECONDS; the message names them. */
ncclResult_t ncclCommInitRank(ncclComm_t *comm, int nranks, ncclUniqueId commId, int rank);
ncclResult_t pncclCommInitRank(ncclComm_t *comm, int nranks, ncclUniqueId commId, int rank);

/* As ncclCommInitRank(), with a config; NULL selects all defaults. With config->blocking = 0 it sets *comm
 * and returns ncclInProgress; ncclCommGetAsyncError() reports when the communicator is ready. */
ncclResult_t ncclCommInitRankConfig(ncclComm_t *comm, int nranks, ncclUniqueId commId, int rank,
                                    ncclConfig_t *config);
ncclResult_t pncclCommInitRankConfig(ncclComm_t *comm, int nranks, ncclUniqueId commId, int rank,
                                     ncclConfig_t *config);

/* As ncclCommInitRankConfig(), with nId ids, 1 <= nId <= nranks. Every rank passes the same ids in the same
 * order. */
ncclResult_t ncclCommInitRankScalable(ncclComm_t *newcomm, int nranks, int myrank, int nId,
                                      ncclUniqueId *commIds, ncclConfig_t *config);
ncclResult_t pncclCommInitRankScalable(ncclComm_t *newcomm, int nranks, int myrank, int nId,
                                       ncclUniqueId *commIds, ncclConfig_t *config);

/* Creates all ranks of a communicator in one call: comm[0..ndev), rank i on device devlist[i] (device i if
 * devlist is NULL). ncclInvalidArgument: ndev < 0, or a device does not exist. ncclInvalidUsage: a device
 * occurs twice. */
ncclResult_t ncclCommInitAll(ncclComm_t *comm, int ndev, const int *devlist);
ncclResult_t pncclCommInitAll(ncclComm_t *comm, int ndev, const int *devlist);

/* Collective over the parent: ranks with the same color (0 or more) form a new communicator, ordered by key,
 * then by parent rank. With NCCL_SPLIT_NOCOLOR *newcomm is NULL. If config is NULL, the parent's config is
 * used. Allowed in a group. */
ncclResult_t ncclCommSplit(ncclComm_t comm, int color, int key, ncclComm_t *newcomm, ncclConfig_t *config);
ncclResult_t pncclCommSplit(ncclComm_t comm, int color, int key, ncclComm_t *newcomm, ncclConfig_t *config);

/* Collective over the remaining ranks: creates a communicator of all ranks except
 * excludeRanksList[0..excludeRanksCount), in the parent's order. ncclInvalidArgument: the list is NULL or
 * empty, a rank is out of range, or the caller is in the list. NCCL_SHRINK_ABORT first aborts the operations
 * that run on the parent. */
ncclResult_t ncclCommShrink(ncclComm_t comm, int *excludeRanksList, int excludeRanksCount,
                            ncclComm_t *newcomm, ncclConfig_t *config, int shrinkFlags);
ncclResult_t pncclCommShrink(ncclComm_t comm, int *excludeRanksList, int excludeRanksCount,
                             ncclComm_t *newcomm, ncclConfig_t *config, int shrinkFlags);

/* Creates the unique id of the next ncclCommGrow() of `comm`, the same on every rank that calls it before
 * that grow. One rank hands it to the ranks that join; it is good for one grow. */
ncclResult_t ncclCommGetUniqueId(ncclComm_t comm, ncclUniqueId *uniqueId);
ncclResult_t pncclCommGetUniqueId(ncclComm_t comm, ncclUniqueId *uniqueId);

/* Collective over the ranks of `comm` and those that join it: creates a communicator of nRanks ranks. `comm`
 * stays as it is, and no operation may be in progress on it. Its ranks keep their numbers: they pass `comm`,
 * rank -1, and the id of ncclCommGetUniqueId() or NULL; if config is NULL, the config of `comm` is used.
 * Ranks that join pass NULL, the id, and a rank from the size of `comm` to nRanks - 1. Allowed in a group.
 * ncclInvalidArgument: nRanks is not above the size of `comm`, newcomm is NULL, or the rank or the id is not
 * as above; otherwise as ncclCommInitRankConfig(). */
ncclResult_t ncclCommGrow(ncclComm_t comm, int nRanks, const ncclUniqueId *uniqueId, int rank,
                          ncclComm_t *newcomm, ncclConfig_t *config);
ncclResult_t pncclCommGrow(ncclComm_t comm, int nRanks, const ncclUniqueId *uniqueId, int rank,
                           ncclComm_t *newcomm, ncclConfig_t *config);

/* ---- Ending communicators ---- */

/* Waits for all work that this rank has enqueued (a non-blocking communicator returns ncclInProgress until
 * then). Afterwards the communicator can only be destroyed. NULL is allowed; a second call returns
 * ncclInvalidArgument. */
ncclResult_t ncclCommFinalize(ncclComm_t comm);
ncclResult_t pncclCommFinalize(ncclComm_t comm);

/* Finalizes the communicator if necessary and frees it. NULL is allowed. The handle is invalid after the
 * call, whatever the result. */
ncclResult_t ncclCommDestroy(ncclComm_t comm);
ncclResult_t pncclCommDestroy(ncclComm_t comm);

/* Stops this rank's running kernels and frees the communicator. Allowed in every state and from any thread,
 * also while another thread is stuck in a call on `comm`. Does not notify other ranks; each rank aborts its
 * own communicator. NULL is allowed. */
ncclResult_t ncclCommAbort(ncclComm_t comm);
ncclResult_t pncclCommAbort(ncclComm_t comm);

/* Stops this rank's running kernels and keeps the communicator for ncclCommSplit(), ncclCommShrink() and
 * ncclCommDestroy(); other calls return ncclInvalidUsage. ncclInvalidArgument: revokeFlags is not
 * NCCL_REVOKE_DEFAULT, the communicator is already revoked, or ncclCommFinalize() was called. */
ncclResult_t ncclCommRevoke(ncclComm_t comm, int revokeFlags);
ncclResult_t pncclCommRevoke(ncclComm_t comm, int revokeFlags);

/* ---- Queries ---- */

/* *asyncError: ncclSuccess, ncclInProgress while the communicator is being initialized or finalized, or the
 * first error of its kernels or its initialization. Never blocks; polling it lets the library make progress.
 */
ncclResult_t ncclCommGetAsyncError(ncclComm_t comm, ncclResult_t *asyncError);
ncclResult_t pncclCommGetAsyncError(ncclComm_t comm, ncclResult_t *asyncError);

ncclResult_t ncclCommCount(const ncclComm_t comm, int *count); /* ranks */
ncclResult_t pncclCommCount(const ncclComm_t comm, int *count);
ncclResult_t ncclCommCuDevice(const ncclComm_t comm, int *device); /* device number of this rank */
ncclResult_t pncclCommCuDevice(const ncclComm_t comm, int *device);
ncclResult_t ncclCommUserRank(const ncclComm_t comm, int *rank);
ncclResult_t pncclCommUserRank(const ncclComm_t comm, int *rank);

/* ---- Registration ---- */

/* Registers buff[0..size) (bytes) for zero-copy transfers. Host memory is ignored: *handle = NULL. */
ncclResult_t ncclCommRegister(const ncclComm_t comm, void *buff, size_t size, void **handle);
ncclResult_t pncclCommRegister(const ncclComm_t comm, void *buff, size_t size, void **handle);
/* NULL is allowed. ncclInvalidUsage: the handle is not of this communicator. */
ncclResult_t ncclCommDeregister(const ncclComm_t comm, void *handle);
ncclResult_t pncclCommDeregister(const ncclComm_t comm, void *handle);

/* Registers a buffer as a window; all ranks of the communicator call it, and no rank waits for another,
 * unless it has a device communicator (nccl_device.h), for whose kernels the window is then: with several
 * ranks in one thread, in a group. Host memory is ignored: the call returns ncclSuccess with *win = NULL, so
 * test the window, not the code. ncclInvalidArgument: buff is NULL, size is 0, or winFlags has unknown bits.
 */
ncclResult_t ncclCommWindowRegister(ncclComm_t comm, void *buff, size_t size, ncclWindow_t *win,
                                    int winFlags);
ncclResult_t pncclCommWindowRegister(ncclComm_t comm, void *buff, size_t size, ncclWindow_t *win,
                                     int winFlags);
/* NULL is allowed. ncclInvalidUsage: the window is not of this communicator. */
ncclResult_t ncclCommWindowDeregister(ncclComm_t comm, ncclWindow_t win);
ncclResult_t pncclCommWindowDeregister(ncclComm_t comm, ncclWindow_t win);

/* *outUserPtr = the address that the window was registered with; NULL for the window NULL.
 * ncclInvalidUsage: the window is not of this communicator. */
ncclResult_t ncclWinGetUserPtr(ncclComm_t comm, ncclWindow_t win, void **outUserPtr);
ncclResult_t pncclWinGetUserPtr(ncclComm_t comm, ncclWindow_t win, void **outUserPtr);

/* ---- Memory of a communicator ---- */

typedef enum {
  ncclStatGpuMemSuspend = 0,   /* bytes that ncclCommSuspend() would give back, or has given back */
  ncclStatGpuMemSuspended = 1, /* 1 if it has, else 0 */
  ncclStatGpuMemPersist = 2,   /* bytes that stay */
  ncclStatGpuMemTotal = 3      /* bytes that are held: both together, or those that stay while suspended */
} ncclCommMemStat_t;

/* *value = the statistic of this rank's communicator now. Connections and their slots are made when calls
 * first need them, so it grows. ncclInvalidArgument: unknown statistic, or value is NULL. */
ncclResult_t ncclCommMemStats(ncclComm_t comm, ncclCommMemStat_t stat, uint64_t *value);
ncclResult_t pncclCommMemStats(ncclComm_t comm, ncclCommMemStat_t stat, uint64_t *value);

/* Gives back the memory that the communicator's connections hold: slots, scratch memory, launches that are
 * kept, mappings of other ranks' memory, registrations with networks. All ranks call it, after the last of
 * their operations has ended; a thread with several ranks does so in one group. Blocks until all have, also
 * for a non-blocking communicator. Until ncclCommResume() a communicator can be asked, finalized, destroyed
 * and aborted; other calls on it return ncclInvalidUsage. Buffers and windows stay registered. Communicators
 * that were split from it go on. ncclInvalidUsage: it is suspended, operations of this rank have not ended or
 * are in a group, or a CUDA graph has some. ncclInvalidArgument: flags is not NCCL_SUSPEND_MEM.
 * ncclRemoteError: a rank did not come; the message names it. */
ncclResult_t ncclCommSuspend(ncclComm_t comm, int flags);
ncclResult_t pncclCommSuspend(ncclComm_t comm, int flags);

/* Ends that. All ranks call it, as ncclCommSuspend(). The next calls connect the ranks as the first ones did.
 * ncclInvalidUsage: it is not suspended. */
ncclResult_t ncclCommResume(ncclComm_t comm);
ncclResult_t pncclCommResume(ncclComm_t comm);

/* ---- Operators ---- */

/* Creates an operator of `comm` for one data type: multiplies each rank's input by *scalar, then sums. Each
 * rank may pass a different scalar. ncclInvalidArgument if a call uses the operator with another type or
 * communicator. */
ncclResult_t ncclRedOpCreatePreMulSum(ncclRedOp_t *op, void *scalar, ncclDataType_t datatype,
                                      ncclScalarResidence_t residence, ncclComm_t comm);
ncclResult_t pncclRedOpCreatePreMulSum(ncclRedOp_t *op, void *scalar, ncclDataType_t datatype,
                                       ncclScalarResidence_t residence, ncclComm_t comm);
/* May be called as soon as the last call that uses the operator has returned. ncclInvalidArgument: the
 * operator is built in or unknown. */
ncclResult_t ncclRedOpDestroy(ncclRedOp_t op, ncclComm_t comm);
ncclResult_t pncclRedOpDestroy(ncclRedOp_t op, ncclComm_t comm);

/* ---- Collectives. n = number of ranks, r = this rank. A count of 0 does nothing. Buffers may coincide where
 * "in place" says so and must not overlap otherwise. ncclInvalidArgument: root outside [0, n), unknown type
 * or operator. ---- */

/* recvbuff[count] = op over all ranks' sendbuff[count], on every rank. In place: sendbuff == recvbuff. */
ncclResult_t ncclAllReduce(const void *sendbuff, void *recvbuff, size_t count, ncclDataType_t datatype,
                           ncclRedOp_t op, ncclComm_t comm, cudaStream_t stream);
ncclResult_t pncclAllReduce(const void *sendbuff, void *recvbuff, size_t count, ncclDataType_t datatype,
                            ncclRedOp_t op, ncclComm_t comm, cudaStream_t stream);

/* As ncclAllReduce(), with the result on the root only; other ranks' recvbuff is not used. In place at the
 * root: sendbuff == recvbuff. */
ncclResult_t ncclReduce(const void *sendbuff, void *recvbuff, size_t count, ncclDataType_t datatype,
                        ncclRedOp_t op, int root, ncclComm_t comm, cudaStream_t stream);
ncclResult_t pncclReduce(const void *sendbuff, void *recvbuff, size_t count, ncclDataType_t datatype,
                         ncclRedOp_t op, int root, ncclComm_t comm, cudaStream_t stream);

/* recvbuff[count] = the root's sendbuff[count], on every rank; other ranks' sendbuff is not used. In place:
 * sendbuff == recvbuff. */
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

/* Sends sendbuff[count] to rank `peer`, which must receive the same count and type. Messages between two
 * ranks match in the order of their calls. Calls that must progress concurrently belong in one group. A count
 * of 0 is a message too. A rank can send to itself if the receive is in the same group (else
 * ncclInvalidUsage). */
ncclResult_t ncclSend(const void *sendbuff, size_t count, ncclDataType_t datatype, int peer, ncclComm_t comm,
                      cudaStream_t stream);
ncclResult_t pncclSend(const void *sendbuff, size_t count, ncclDataType_t datatype, int peer, ncclComm_t comm,
                       cudaStream_t stream);

/* Receives recvbuff[count] from rank `peer`, which calls ncclSend(). */
ncclResult_t ncclRecv(void *recvbuff, size_t count, ncclDataType_t datatype, int peer, ncclComm_t comm,
                      cudaStream_t stream);
ncclResult_t pncclRecv(void *recvbuff, size_t count, ncclDataType_t datatype, int peer, ncclComm_t comm,
                       cudaStream_t stream);

/* ---- Groups ---- */

/* Starts a group: until ncclGroupEnd() this thread's calls are queued, not executed. Groups nest; the
 * outermost ncclGroupEnd() executes the calls. */
ncclResult_t ncclGroupStart(void);
ncclResult_t pncclGroupStart(void);

/* Executes the queued calls: first communicators are created, then each communicator's operations are
 * launched together. If a call of the group failed, returns its code and executes nothing. ncclInvalidUsage:
 * there is no open group, or only some of the group's streams are being captured into a graph. */
ncclResult_t ncclGroupEnd(void);
ncclResult_t pncclGroupEnd(void);

/* Ends the group without executing it. simInfo->estimatedTime = predicted time of the operations in
 * microseconds. */
ncclResult_t ncclGroupSimulateEnd(ncclSimInfo_t *simInfo);
ncclResult_t pncclGroupSimulateEnd(ncclSimInfo_t *simInfo);

/* ---- One-sided calls: a rank writes into another one's memory, which makes no call for it. Ranks count the
 * signals of each other rank. Until ncclGroupEnd() these calls are queued as others are; a group's puts and
 * signals are launched before its other operations, and its waits behind them. They need memory that both
 * ranks reach: peers are ranks of one host, in one process or several, whose devices reach each other.
 * ncclInvalidUsage for others, and on a stream that is being captured into a graph. ---- */

/* What ncclWaitSignal() waits for: opCnt signals from rank `peer`. sigIdx and ctx: 0. */
typedef struct {
  int opCnt;
  int peer;
  int sigIdx;
  int ctx;
} ncclWaitSignalDesc_t;

/* Copies `count` elements of localbuff into the window of rank `peer`, to the byte peerWinOffset, and then
 * makes one signal from this rank visible there. peerWin is this rank's handle of the window: the n-th that a
 * rank registers is the same window as the n-th of each other rank, whatever its size. Waits, if need be,
 * until the peer has registered it. localbuff may be used again in the order of the stream; puts for one peer
 * take place in the order of their calls, on whatever streams. count 0: as ncclSignal(). peer may be this
 * rank. sigIdx, ctx, flags: 0. ncclInvalidArgument: the bytes do not fit into the peer's window. */
ncclResult_t ncclPutSignal(const void *localbuff, size_t count, ncclDataType_t datatype, int peer,
                           ncclWindow_t peerWin, size_t peerWinOffset, int sigIdx, int ctx,
                           unsigned int flags, ncclComm_t comm, cudaStream_t stream);
ncclResult_t pncclPutSignal(const void *localbuff, size_t count, ncclDataType_t datatype, int peer,
                            ncclWindow_t peerWin, size_t peerWinOffset, int sigIdx, int ctx,
                            unsigned int flags, ncclComm_t comm, cudaStream_t stream);

/* The signal alone: it becomes visible behind all that this rank has put into memory of `peer` before. */
ncclResult_t ncclSignal(int peer, int sigIdx, int ctx, unsigned int flags, ncclComm_t comm,
                        cudaStream_t stream);
ncclResult_t pncclSignal(int peer, int sigIdx, int ctx, unsigned int flags, ncclComm_t comm,
                         cudaStream_t stream);

/* The stream goes on when the signals of all nDesc descriptors have come, beyond those that earlier waits of
 * this rank took; the data that was put before them is then there. ncclCommAbort() ends the wait. */
ncclResult_t ncclWaitSignal(int nDesc, ncclWaitSignalDesc_t *signalDescs, ncclComm_t comm,
                            cudaStream_t stream);
ncclResult_t pncclWaitSignal(int nDesc, ncclWaitSignalDesc_t *signalDescs, ncclComm_t comm,
                             cudaStream_t stream);

/* ---- Settings: the values that the library uses, by the names of their environment variables. Sizes are
 * bytes. All return ncclInvalidArgument for NULL, for a name that is no setting of the library or is accepted
 * without effect (`tutti help params` lists both), and for a value that the type cannot hold. ---- */

typedef struct ncclParamHandle *ncclParamHandle_t;

/* *out = handle of the setting `key`. Valid for the process's life; not to be freed. */
ncclResult_t ncclParamBind(ncclParamHandle_t *out, const char *key);
ncclResult_t pncclParamBind(ncclParamHandle_t *out, const char *key);

/* *out = the value of a setting that is a number. */
ncclResult_t ncclParamGetI8(ncclParamHandle_t h, int8_t *out);
ncclResult_t pncclParamGetI8(ncclParamHandle_t h, int8_t *out);
ncclResult_t ncclParamGetI16(ncclParamHandle_t h, int16_t *out);
ncclResult_t pncclParamGetI16(ncclParamHandle_t h, int16_t *out);
ncclResult_t ncclParamGetI32(ncclParamHandle_t h, int32_t *out);
ncclResult_t pncclParamGetI32(ncclParamHandle_t h, int32_t *out);
ncclResult_t ncclParamGetI64(ncclParamHandle_t h, int64_t *out);
ncclResult_t pncclParamGetI64(ncclParamHandle_t h, int64_t *out);
ncclResult_t ncclParamGetU8(ncclParamHandle_t h, uint8_t *out);
ncclResult_t pncclParamGetU8(ncclParamHandle_t h, uint8_t *out);
ncclResult_t ncclParamGetU16(ncclParamHandle_t h, uint16_t *out);
ncclResult_t pncclParamGetU16(ncclParamHandle_t h, uint16_t *out);
ncclResult_t ncclParamGetU32(ncclParamHandle_t h, uint32_t *out);
ncclResult_t pncclParamGetU32(ncclParamHandle_t h, uint32_t *out);
ncclResult_t ncclParamGetU64(ncclParamHandle_t h, uint64_t *out);
ncclResult_t pncclParamGetU64(ncclParamHandle_t h, uint64_t *out);

/* *out = the value as text, valid until ncclResetDebugInit(). */
ncclResult_t ncclParamGetStr(ncclParamHandle_t h, const char **out);
ncclResult_t pncclParamGetStr(ncclParamHandle_t h, const char **out);

/* out[0..*len) = the value's bytes: a number as int64_t, a text without its end. ncclInvalidArgument: it has
 * more than maxLen; *len says how many. */
ncclResult_t ncclParamGet(ncclParamHandle_t h, void *out, int maxLen, int *len);
ncclResult_t pncclParamGet(ncclParamHandle_t h, void *out, int maxLen, int *len);

/* The value of the setting `key` as text of *valueLen bytes. valueLen may be NULL. */
ncclResult_t ncclParamGetParameter(const char *key, const char **value, int *valueLen);
ncclResult_t pncclParamGetParameter(const char *key, const char **value, int *valueLen);

/* (*table)[0..*tableLen) = the names of the settings, those of NCCL; with NCCL_PARAM_DUMP_ALL=true also those
 * that only tutti has. Valid for the process's life. */
ncclResult_t ncclParamGetAllParameterKeys(const char ***table, int *tableLen);
ncclResult_t pncclParamGetAllParameterKeys(const char ***table, int *tableLen);

/* Logs these settings with their values and where each comes from (NCCL_DEBUG=INFO, subsystem ENV). */
void ncclParamDumpAll(void);
void pncclParamDumpAll(void);

#if defined(__GNUC__)
#pragma GCC visibility pop
#endif
#ifdef __cplusplus
}
#endif

#endif
#endif
