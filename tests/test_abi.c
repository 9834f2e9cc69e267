/* test_abi.c: the binary interface of NCCL 2.30.7 in numbers: sizes, offsets, enum values, initializers; and
 * every symbol of its library exists twice, as ncclX and pncclX. The numbers are those of the x86-64 and
 * AArch64 Linux ABIs. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "nccl.h"

static void test_sizes(void **state) {
  (void)state;
  assert_int_equal(sizeof(ncclUniqueId), 128);
  assert_int_equal(sizeof(ncclComm_t), 8);
  assert_int_equal(sizeof(ncclWindow_t), 8);
  assert_int_equal(sizeof(ncclResult_t), 4);
  assert_int_equal(sizeof(ncclDataType_t), 4);
  assert_int_equal(sizeof(ncclRedOp_t), 4);
  assert_int_equal(sizeof(ncclScalarResidence_t), 4);
  assert_int_equal(sizeof(ncclConfig_t), 96);
  assert_int_equal(sizeof(ncclWaitSignalDesc_t), 16);
  assert_int_equal(sizeof(ncclCommMemStat_t), 4);
  assert_int_equal(sizeof(ncclParamHandle_t), 8);
  assert_int_equal(sizeof(ncclSimInfo_t), 24);
}

static void test_config_layout(void **state) {
  (void)state;
  assert_int_equal(offsetof(ncclConfig_t, size), 0);
  assert_int_equal(offsetof(ncclConfig_t, magic), 8);
  assert_int_equal(offsetof(ncclConfig_t, version), 12);
  assert_int_equal(offsetof(ncclConfig_t, blocking), 16);
  assert_int_equal(offsetof(ncclConfig_t, cgaClusterSize), 20);
  assert_int_equal(offsetof(ncclConfig_t, minCTAs), 24);
  assert_int_equal(offsetof(ncclConfig_t, maxCTAs), 28);
  assert_int_equal(offsetof(ncclConfig_t, netName), 32);
  assert_int_equal(offsetof(ncclConfig_t, splitShare), 40);
  assert_int_equal(offsetof(ncclConfig_t, trafficClass), 44);
  assert_int_equal(offsetof(ncclConfig_t, commName), 48);
  assert_int_equal(offsetof(ncclConfig_t, collnetEnable), 56);
  assert_int_equal(offsetof(ncclConfig_t, CTAPolicy), 60);
  assert_int_equal(offsetof(ncclConfig_t, shrinkShare), 64);
  assert_int_equal(offsetof(ncclConfig_t, nvlsCTAs), 68);
  assert_int_equal(offsetof(ncclConfig_t, nChannelsPerNetPeer), 72);
  assert_int_equal(offsetof(ncclConfig_t, nvlinkCentricSched), 76);
  assert_int_equal(offsetof(ncclConfig_t, graphUsageMode), 80);
  assert_int_equal(offsetof(ncclConfig_t, numRmaCtx), 84);
  assert_int_equal(offsetof(ncclConfig_t, maxP2pPeers), 88);
  assert_int_equal(offsetof(ncclConfig_t, graphStreamOrdering), 92);
  assert_int_equal(offsetof(ncclSimInfo_t, magic), 8);
  assert_int_equal(offsetof(ncclSimInfo_t, version), 12);
  assert_int_equal(offsetof(ncclSimInfo_t, estimatedTime), 16);
}

static void test_initializers(void **state) {
  (void)state;
  const ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
  const ncclSimInfo_t info = NCCL_SIM_INFO_INITIALIZER;
  const int values[] = {config.blocking,
                        config.cgaClusterSize,
                        config.minCTAs,
                        config.maxCTAs,
                        config.splitShare,
                        config.trafficClass,
                        config.collnetEnable,
                        config.CTAPolicy,
                        config.shrinkShare,
                        config.nvlsCTAs,
                        config.nChannelsPerNetPeer,
                        config.nvlinkCentricSched,
                        config.graphUsageMode,
                        config.numRmaCtx,
                        config.maxP2pPeers,
                        config.graphStreamOrdering};
  assert_int_equal(config.size, 96);
  assert_int_equal(config.magic, 0xcafebeef);
  assert_int_equal(config.version, 23007);
  for (size_t i = 0; i < sizeof values / sizeof values[0]; i++) assert_int_equal(values[i], INT32_MIN);
  assert_null(config.netName);
  assert_null(config.commName);
  assert_int_equal(info.size, 24);
  assert_int_equal(info.magic, 0x74685283);
  assert_int_equal(info.version, 23007);
  assert_true(info.estimatedTime == -1.0f);
}

static void test_values(void **state) {
  (void)state;
  const int types[][2] = {{ncclInt8, 0},        {ncclChar, 0},     {ncclUint8, 1},    {ncclInt32, 2},
                          {ncclInt, 2},         {ncclUint32, 3},   {ncclInt64, 4},    {ncclUint64, 5},
                          {ncclFloat16, 6},     {ncclHalf, 6},     {ncclFloat32, 7},  {ncclFloat, 7},
                          {ncclFloat64, 8},     {ncclDouble, 8},   {ncclBfloat16, 9}, {ncclFloat8e4m3, 10},
                          {ncclFloat8e5m2, 11}, {ncclNumTypes, 12}};
  const int operators[][2] = {{ncclSum, 0},
                              {ncclProd, 1},
                              {ncclMax, 2},
                              {ncclMin, 3},
                              {ncclAvg, 4},
                              {ncclNumOps, 5},
                              {ncclMaxRedOp, 0x7fffffff},
                              {ncclScalarDevice, 0},
                              {ncclScalarHostImmediate, 1}};
  const int results[][2] = {{ncclSuccess, 0},       {ncclUnhandledCudaError, 1}, {ncclSystemError, 2},
                            {ncclInternalError, 3}, {ncclInvalidArgument, 4},    {ncclInvalidUsage, 5},
                            {ncclRemoteError, 6},   {ncclInProgress, 7},         {ncclTimeout, 8},
                            {ncclNumResults, 9}};
  const int constants[][2] = {{NCCL_SPLIT_NOCOLOR, -1},
                              {NCCL_CONFIG_UNDEF_INT, INT32_MIN},
                              {NCCL_WIN_DEFAULT, 0},
                              {NCCL_WIN_COLL_SYMMETRIC, 1},
                              {NCCL_WIN_STRICT_ORDERING, 2},
                              {NCCL_SUSPEND_MEM, 1},
                              {ncclStatGpuMemSuspend, 0},
                              {ncclStatGpuMemSuspended, 1},
                              {ncclStatGpuMemPersist, 2},
                              {ncclStatGpuMemTotal, 3},
                              {NCCL_WIN_REQUIRED_ALIGNMENT, 4096},
                              {NCCL_CTA_POLICY_DEFAULT, 0},
                              {NCCL_CTA_POLICY_EFFICIENCY, 1},
                              {NCCL_CTA_POLICY_ZERO, 2},
                              {NCCL_SHRINK_DEFAULT, 0},
                              {NCCL_SHRINK_ABORT, 1},
                              {NCCL_REVOKE_DEFAULT, 0},
                              {NCCL_VERSION_CODE, 23007},
                              {NCCL_VERSION(2, 30, 7), 23007},
                              {NCCL_VERSION(2, 8, 3), 2803},
                              {NCCL_UNIQUE_ID_BYTES, 128}};
  for (size_t i = 0; i < sizeof types / sizeof types[0]; i++) assert_int_equal(types[i][0], types[i][1]);
  for (size_t i = 0; i < sizeof operators / sizeof operators[0]; i++)
    assert_int_equal(operators[i][0], operators[i][1]);
  for (size_t i = 0; i < sizeof results / sizeof results[0]; i++)
    assert_int_equal(results[i][0], results[i][1]);
  for (size_t i = 0; i < sizeof constants / sizeof constants[0]; i++)
    assert_int_equal(constants[i][0], constants[i][1]);
}

/* clang-format off */
#define SYMBOLS(X) \
  X(AllGather) X(AllReduce) X(AlltoAll) X(Bcast) X(Broadcast) X(CommAbort) X(CommCount) \
  X(CommCuDevice) X(CommDeregister) X(CommDestroy) X(CommFinalize) X(CommGetAsyncError) \
  X(CommGetUniqueId) X(CommGrow) X(CommInitAll) X(CommInitRank) X(CommInitRankConfig) \
  X(CommInitRankScalable) X(CommMemStats) X(CommRegister) X(CommResume) X(CommRevoke) X(CommShrink) \
  X(CommSplit) X(CommSuspend) X(CommUserRank) X(CommWindowDeregister) X(CommWindowRegister) \
  X(Gather) X(GetErrorString) X(GetLastError) X(GetUniqueId) X(GetVersion) X(GroupEnd) \
  X(GroupSimulateEnd) X(GroupStart) X(MemAlloc) X(MemFree) X(ParamBind) X(ParamDumpAll) X(ParamGet) \
  X(ParamGetAllParameterKeys) X(ParamGetI16) X(ParamGetI32) X(ParamGetI64) X(ParamGetI8) \
  X(ParamGetParameter) X(ParamGetStr) X(ParamGetU16) X(ParamGetU32) X(ParamGetU64) X(ParamGetU8) \
  X(PutSignal) X(Recv) X(RedOpCreatePreMulSum) X(RedOpDestroy) X(Reduce) X(ReduceScatter) \
  X(ResetDebugInit) X(Scatter) X(Send) X(Signal) X(WaitSignal) X(WinGetUserPtr)

/* The header does not declare these functions. */
#define HIDDEN_SYMBOLS(X) \
  X(CommQueryProperties) X(DevCommCreate) X(DevCommDestroy) X(GetLsaDevicePointer) \
  X(GetLsaMultimemDevicePointer) X(GetMultimemDevicePointer) X(GetPeerDevicePointer) \
  X(GinBarrierCreateRequirement) X(GinInboxA2ACreateRequirement) X(GinOutboxCreateRequirement) \
  X(LLA2ACalcSlots) X(LLA2ACreateRequirement) X(LsaBarrierCreateRequirement) X(TeamLsa) X(TeamRail) \
  X(TeamRankToLsa) X(TeamRankToWorld) X(TeamWorld)
/* clang-format on */

typedef void (*any_function)(void);
#define DECLARE(name)    \
  void nccl##name(void); \
  void pnccl##name(void);
HIDDEN_SYMBOLS(DECLARE)
void ncclResetDebugInitInternal(void);

/* Linking this program is most of the test; the weak name must resolve to the strong one. */
static void test_symbols(void **state) {
  (void)state;
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wdeprecated-declarations"
#define PAIR(name) {(any_function)nccl##name, (any_function)pnccl##name},
  const any_function pairs[][2] = {SYMBOLS(PAIR) HIDDEN_SYMBOLS(PAIR)};
#pragma GCC diagnostic pop
  assert_int_equal(sizeof pairs / sizeof pairs[0], 82);
  for (size_t i = 0; i < sizeof pairs / sizeof pairs[0]; i++) {
    assert_non_null(pairs[i][0]);
    assert_ptr_equal(pairs[i][0], pairs[i][1]);
  }
  assert_non_null(ncclResetDebugInitInternal);
}

int main(void) {
  const struct CMUnitTest tests[] = {cmocka_unit_test(test_sizes), cmocka_unit_test(test_config_layout),
                                     cmocka_unit_test(test_initializers), cmocka_unit_test(test_values),
                                     cmocka_unit_test(test_symbols)};
  return cmocka_run_group_tests(tests, NULL, NULL);
}
