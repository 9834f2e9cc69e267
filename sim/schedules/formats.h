/* formats.h: readers of other tools' schedules. */
#ifndef TUTTI_SIM_SCHEDULES_FORMATS_H
#define TUTTI_SIM_SCHEDULES_FORMATS_H

#include "core/custom/custom_build.h"

custom_parser custom_msccl_parse, custom_mscclpp_parse;

#endif
