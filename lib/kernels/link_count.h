/* link_count.h: the maximum number of links of GPU kernels. Preprocessor only, because the device primitives
 * include it before everything else. */
#ifndef TUTTI_KERNELS_LINK_COUNT_H
#define TUTTI_KERNELS_LINK_COUNT_H

/* Links per side of a work: all other GPUs of a host with eight. */
#define LAUNCH_LINKS 7

#endif
