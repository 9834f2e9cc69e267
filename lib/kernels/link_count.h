/* link_count.h: what kernels of GPUs carry at most. Preprocessor alone: the device seam reads it before all
 * else. */
#ifndef TUTTI_KERNELS_LINK_COUNT_H
#define TUTTI_KERNELS_LINK_COUNT_H

/* Links a side of a work: all other GPUs of a host of eight. */
#define LAUNCH_LINKS 7

#endif
