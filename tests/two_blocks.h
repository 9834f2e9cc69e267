/* two_blocks.h: a schedule of two ranks in which a block copies what the rank's other one has received, and
 * has ended long before it. */
#ifndef TUTTI_TESTS_TWO_BLOCKS_H
#define TUTTI_TESTS_TWO_BLOCKS_H

static const char two_blocks[] =
    "tutti-schedule 1\n"
    "collective: all_gather\n"
    "ranks: 2\n"
    "chunks: 1\n"
    "protocol: any\n"
    "in-place: no\n"
    "scratch: 2\n"
    "rank 0 channel 0:\n"
    "  read in[0], keep out[0]\n"
    "  after block 1 step 0, read scratch[1], keep out[1]\n"
    "rank 0 channel 1:\n"
    "  recv <- 1, keep scratch[1]\n"
    "  read in[0], send -> 1\n"
    "  read in[0], keep scratch[0]\n"
    "  nothing\n"
    "rank 1 channel 0:\n"
    "  read in[0], keep out[1]\n"
    "  after block 1 step 1, read scratch[1], keep out[0]\n"
    "rank 1 channel 1:\n"
    "  read in[0], send -> 0\n"
    "  recv <- 0, keep scratch[1]\n"
    "  read in[0], keep scratch[0]\n"
    "  nothing\n";

#endif
