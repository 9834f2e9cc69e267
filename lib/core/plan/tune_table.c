/* tune_table.c: the figures. Columns of three are LL, LL128, Simple. The first four tables are those of
 * NCCL's model. The measured ones are fitted to four H200 over NVLink: the ring to the results of
 * bench/gpu.sh, the direct collectives to kernels written for this measurement. */
#include "core/plan/tune_table.h"

const struct tune_latency tune_latency[ALGO_COUNT] = {
    /* base, then a hop over NVLink, PCIe, network */
    {{6.8, 14, 8.4}, {{0.6, 1.25, 4}, {1, 1.9, 4}, {5, 8.5, 14}}},    /* Tree */
    {{6.6, 14, 8.4}, {{0.6, 1.9, 3.4}, {1, 2.5, 5.7}, {2.7, 4, 14}}}, /* Ring */
    {{0, 0, 0}, {{0, 0, 3.7}, {0, 0, 3.7}, {0, 0, 31}}},              /* CollNetDirect */
    {{0, 0, 0}, {{0, 0, 2.8}, {0, 0, 2.8}, {0, 0, 30}}},              /* CollNetChain */
    {{0, 0, 0}, {{0, 0, 25}, {0, 0, 0}, {0, 0, 18}}},                 /* NVLS */
    {{0, 0, 0}, {{0, 0, 25}, {0, 0, 0}, {0, 0, 20.9}}},               /* NVLSTree */
    {{8, 8, 8}, {{0, 0, 4}, {0, 0, 4}, {0, 0, 14}}},                  /* PAT */
    {{0, 0, 0}, {{0, 0, 0}, {0, 0, 0}, {0, 0, 0}}},                   /* Direct: measured, below */
    {{0, 0, 0}, {{0, 0, 0}, {0, 0, 0}, {0, 0, 0}}},                   /* TwoShot: measured, below */
    {{0, 0, 0}, {{0, 0, 0}, {0, 0, 0}, {0, 0, 0}}},                   /* Custom: never by time */
};

const struct tune_limit tune_limit[TUNE_CLASS_COUNT] = {
    /* LL in all; ring LL128, tree LL128, tree, switch tree a channel; switch efficiency */
    {{39, 39, 20.4}, {20, 20, 20}, {20, 20, 20}, {26.5, 18.5, 10}, {26.5, 18.5, 10}, 0},
    {{87.7, 22.5, 19}, {20, 20, 20}, {20, 20, 20}, {24, 23.6, 17.8}, {24, 23.6, 17.8}, 0},
    {{141, 45, 35}, {36.7, 36.7, 36.7}, {36.7, 36.7, 29}, {38.7, 41.4, 36}, {0, 57.7, 45.5}, 0.85},
    {{282, 90, 70}, {40, 40, 40}, {55.6, 31.67, 20}, {70, 42.8, 24}, {0, 96, 80}, 0.74},
};

const double tune_tree_share[PROTO_COUNT][TUNE_CORRECTION_COUNT] = {
    {1, 1, 1, 1, .9, .8, .7, .7, .7, .7, .6, .5, .4, .4, .5, .6, .7, .8, .9, 1, 1, 1, 1, 1},
    {1, 1, 1, 1, 1, .9, .8, .8, .8, .7, .6, .6, .6, .6, .6, .6, .8, .9, .9, .9, .9, 1, 1, 1},
    {.9, .9, .9, .9, .9, .9, .9, .8, .7, .6, .6, .5, .5, .5, .5, .6, .7, .8, .7, .7, .8, .9, .9, .9},
};

const uint32_t tune_thread_bytes[PROTO_COUNT] = {8, 8, 64};
const uint32_t tune_threads[PROTO_COUNT] = {512, 640, 512};

/* The worst of the five collectives is off by a fifth, and the borders between protocols are where the
 * measured times cross. A few channels carry as much as a block moves, 8 of them 260 GB/s; from about twelve
 * on the link is the limit. Half of an LL line is flags, and its stores are short; of LL128's 128 bytes 120
 * are data, and every line is read twice. */
const struct tune_measured_ring tune_measured_ring = {
    {4.3, 7.0, 8.0}, {0.95, 1.05, 6.6}, 32.5, 358.4, 141.0, 36.7, 0.65};

/* LL of both: this library's, in graphs, 8 bytes to 512 KiB over 8 and 16 channels. Simple of both, and the
 * halves of OneShot: 256 KiB to 128 MiB over 8, 12, 16 and 32 channels. The figures fit within a seventh.
 * The base of two shots over Simple is that of a process a GPU, 512 KiB to 8 MiB, as is the least of one
 * shot: 14.6 us among two GPUs, 17.6 among four. LL128 was not measured; its figures lie between the two. */
const struct tune_measured_direct tune_measured_one_shot = {{4.8, 6.2, 8},   {0.1, 0.2, 0.2}, {0, 0, 14.5},
                                                            {140, 200, 290}, {11, 11, 20},    1};
const struct tune_measured_direct tune_measured_two_shot = {{6.1, 7.0, 9.3}, {0.1, 0.2, 0.2}, {0, 0, 0},
                                                            {138, 200, 305}, {11, 11, 30},    2};

/* The same in LL if a block's lines go once round, 8 bytes to 64 KiB in one shot, to 256 KiB in two; the
 * figures fit within a tenth. */
const struct tune_measured_direct tune_measured_one_shot_once = {{2.1, 0, 0}, {0.1, 0, 0}, {0, 0, 0},
                                                                 {126, 0, 0}, {20, 0, 0},  1};
const struct tune_measured_direct tune_measured_two_shot_once = {{3.15, 0, 0}, {0.1, 0, 0}, {0, 0, 0},
                                                                 {184, 0, 0},  {20, 0, 0},  2};

/* On four H200, in place: 16 to 128 MiB over 16, 20 and 24 channels; fits within a twentieth. With 256 MiB
 * and more it takes up to a fifteenth longer than this, and a chain takes less. */
const struct tune_measured_apart tune_measured_apart = {9, 55, 342, 20, 20};

/* On two H200, one process each: OneShot in LL from 256 KiB to 2 MiB, in Simple from 2 to 256 MiB, rings from
 * 2 to 64 MiB, chains from 512 KiB to 64 MiB; the figures fit within a tenth. LL128 of OneShot was not
 * measured. A direct broadcast waits for the receiver's address: 22 us for 1 MiB, 23 for 4. A reduce-scatter
 * and a reduction to a root in one hop: 1 MiB to 1 GiB over 12 to 32 channels; fits within a sixth. Two
 * shots, and rings over LL128: 4 to 64 MiB over 8 channels; over LL, of which 32 channels carry 141 GB/s, a
 * channel was not measured. */
const struct tune_measured_pair tune_measured_pair = {.scatter_sum = {9.5, 13, 325, 11.5},
                                                      .root_sum = {5.8, 8.3, 350, 18},
                                                      .two_shot_channel_gbps = 21.3,
                                                      .ring_channel_gbps = {5.5, 7.4, 32.5},
                                                      .one_shot_gbps = {86, 110, 153},
                                                      .ring_gbps = {92, 107, 290},
                                                      .gather_gbps = 338,
                                                      .broadcast_gbps = 363,
                                                      .all_to_all_gbps = 228,
                                                      .broadcast_us = 22,
                                                      .chain_base_us = {5.25, 6, 10.5},
                                                      .chain_gbps = {143, 255, 366},
                                                      .chain_least_us = {0, 9.5, 0}};

/* Simple: 256 KiB to 64 MiB to one other rank and to three, fits within a tenth; direct collectives over LL:
 * 16 KiB to 2 MiB. */
const struct tune_measured_messages tune_measured_messages = {15.5, 345, {78, 200, 280}};

/* Two H200, one process each, over PCIe 5 with NCCL_P2P_DISABLE=1: all_reduce and all_gather of 64 bytes to
 * 1 MiB over 1, 4, 8 and 32 channels, to 16 MiB over 32; fits within a fifth. A direct collective's lines are
 * few (four KiB take 13 us longer than one line), but its Simple needs no ring's hops. LL128 was measured of
 * rings alone, and is used only if NCCL_PROTO names it. */
const struct tune_measured_host tune_measured_host = {.ring_base_us = {7.8, 8, 12},
                                                      .ring_hop_us = {1.8, 3.6, 8},
                                                      .ring_channel_gbps = {2.9, 4, 26},
                                                      .ring_all_gbps = {17, 18.8, 31},
                                                      .direct_base_us = {7.5, 11.6, 12.2},
                                                      .direct_channel_gbps = {0.33, 4, 6},
                                                      .direct_all_gbps = {0.33, 17, 24.4}};

/* Two cores, 8 bytes to 64 KiB: LL up to some 150 bytes, then Simple, OneShot up to 64 KiB; fits within a
 * tenth. A hop of Simple costs cache misses, which for the first hop overlap with the launch. */
const struct tune_measured_cores tune_measured_cores = {
    {0.55, 0.7, -0.55}, {0.1, 0.1, 1.4}, {1.5, 3, 9}, 0.4};

/* Two processes with a core each, over loopback: a hop is the kernel's time from send to receive, a message
 * the cost of both calls. */
const struct tune_measured_sockets tune_measured_sockets = {2, 3, 3, 1.4, 1.31, 0.1, 2};

/* LL, LL128 (which networks do not carry), Simple. */
const struct tune_joined tune_joined = {.base_us = {9, 0, 20},
                                        .tree_base_us = {7.3, 0, 9},
                                        .hop_us = {0.63, 0, 3.58},
                                        .chain_hop_us = {0.63, 0, 2.6},
                                        .net_us = {3.9, 0, 7.6},
                                        .level_us = {6.3, 0, 11.5},
                                        .piece_bytes = {4096, 0, 65536},
                                        .tree_piece_bytes = {4096, 0, 524288},
                                        .gbps = {4.62, 0, 21},
                                        .tree_gbps = {4.62, 0, 43},
                                        .level_gbps = {0.44, 0, 6},
                                        .order_share = 0.8,
                                        .order_ll_share = 0.4,
                                        .hidden_bytes = 65536};

const double tune_proxied_ll_gbps = 0.7;
