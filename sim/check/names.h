/* names.h: what users call algorithms, protocols and operators. */
#ifndef TUTTI_SIM_CHECK_NAMES_H
#define TUTTI_SIM_CHECK_NAMES_H

#include <stdint.h>

#define NAME_NONE UINT8_MAX

/* The number of a name, in any case; NAME_NONE when there is none. */
uint8_t name_algo(const char *name);
uint8_t name_proto(const char *name);
uint8_t name_type(const char *name);
/* The kernel's operator (enum work_op) that a user's becomes: avg of floats is a product and a sum. */
uint8_t name_op(const char *name, uint8_t dtype);
uint8_t name_func(const char *name);

const char *algo_name(uint8_t algo);
const char *proto_name(uint8_t proto);
const char *func_name(uint8_t func);

#endif
