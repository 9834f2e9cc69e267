/* net_abi.h: the binary interface of NCCL's network plugins, versions 6 to 12: what libnccl-net-NAME.so
 * exports as ncclNetPlugin_v6 to _v12. Order and types of the members define the interface; the names are
 * this library's. How a plugin is found or used is elsewhere (plugin/). */
#ifndef TUTTI_BACKENDS_NET_ABI_H
#define TUTTI_BACKENDS_NET_ABI_H

#include <stddef.h>
#include <stdint.h>

#include "nccl.h"

#define ABI_OLDEST 6
#define ABI_NEWEST 12
#define ABI_SYMBOL "ncclNetPlugin_v%d"

#define ABI_HANDLE_BYTES 128
#define ABI_REQUESTS_MAX 32 /* in progress on one connection */
enum abi_memory { ABI_MEMORY_HOST = 1, ABI_MEMORY_CUDA = 2, ABI_MEMORY_DMABUF = 4 };
#define ABI_OFFLOAD_NONE 0 /* device_type of a network that the host drives */
#define ABI_UNDEFINED (-1) /* traffic class, rail, plane */

typedef void (*abi_log)(int level, unsigned long subsystems, const char *file, int line, const char *format,
                        ...);
/* Reports an event to a profiler; plugins may call it at any time. */
typedef ncclResult_t (*abi_profile)(void **event, int type, void *parent, int64_t plugin, void *extra);

struct abi_config {
  int traffic_class;
};

/* Devices that are combined into a virtual one. */
struct abi_parts_v10 {
  int count;
  int devices[4];
};
struct abi_parts_v12 {
  int count;
  int devices[8];
};

/* Properties of a device. They grew in the middle until version 9, and at the end since. */
struct abi_properties_v6 {
  char *name, *pci_path;
  uint64_t guid;
  int memory, speed_mbps, port;
  float latency_us;
  int comms_max, recvs_max;
  int device_type, device_version; /* from version 7 on */
};
struct abi_properties_v8 {
  char *name, *pci_path;
  uint64_t guid;
  int memory, registration_is_global, speed_mbps, port;
  float latency_us;
  int comms_max, recvs_max, device_type, device_version;
};

/* The part that is common to all versions from 9 on. */
struct abi_device {
  char *name;
  char *pci_path; /* below /sys, or NULL */
  uint64_t guid;
  int memory; /* set of enum abi_memory */
  int registration_is_global, force_flush;
  int speed_mbps, port;
  float latency_us;
  int comms_max, recvs_max;
  int device_type, device_version; /* offload to the GPU; ABI_OFFLOAD_NONE */
};
struct abi_properties_v10 { /* and of version 9 */
  struct abi_device device;
  struct abi_parts_v10 parts;
  size_t p2p_bytes_max, collective_bytes_max;
};
struct abi_properties_v11 {
  struct abi_device device;
  struct abi_parts_v10 parts;
  size_t p2p_bytes_max, collective_bytes_max;
  int requests_at_once_max;
};
struct abi_properties_v12 {
  struct abi_device device;
  struct abi_parts_v12 parts;
  size_t p2p_bytes_max, collective_bytes_max;
  int requests_at_once_max;
  int16_t rail, plane;
};
/* What a caller passes to `properties`. */
union abi_properties {
  struct abi_properties_v6 v6;
  struct abi_properties_v8 v8;
  struct abi_device device;
  struct abi_properties_v10 v10;
  struct abi_properties_v11 v11;
  struct abi_properties_v12 v12;
  char capacity[512];
};

/* Versions 6 to 8 count bytes of messages as int, and up to 7 those of registered memory. Version 7 has
 * offloads to the GPU, 10 a profiler, and from version 11 on there is one context per communicator. */
typedef ncclResult_t (*abi_init_v6)(abi_log log);
typedef ncclResult_t (*abi_init_v10)(abi_log log, abi_profile profile);
typedef ncclResult_t (*abi_init_v11)(void **context, uint64_t comm_id, struct abi_config *config, abi_log log,
                                     abi_profile profile);
typedef ncclResult_t (*abi_listen_v10)(int device, void *handle, void **listener);
typedef ncclResult_t (*abi_listen_v11)(void *context, int device, void *handle, void **listener);
typedef ncclResult_t (*abi_connect_v6)(int device, void *handle, void **sender);
typedef ncclResult_t (*abi_connect_v7)(int device, void *handle, void **sender, void **offload);
typedef ncclResult_t (*abi_connect_v10)(int device, struct abi_config *config, void *handle, void **sender,
                                        void **offload);
typedef ncclResult_t (*abi_connect_v11)(void *context, int device, void *handle, void **sender,
                                        void **offload);

typedef ncclResult_t (*abi_accept_v6)(void *listener, void **receiver);
typedef ncclResult_t (*abi_accept_v7)(void *listener, void **receiver, void **offload);
typedef ncclResult_t (*abi_register_v6)(void *connection, void *data, int bytes, int memory,
                                        void **registration);
typedef ncclResult_t (*abi_register_v8)(void *connection, void *data, size_t bytes, int memory,
                                        void **registration);
typedef ncclResult_t (*abi_isend_v6)(void *sender, void *data, int bytes, int tag, void *registration,
                                     void **request);
typedef ncclResult_t (*abi_isend_v9)(void *sender, void *data, size_t bytes, int tag, void *registration,
                                     void **request);
typedef ncclResult_t (*abi_isend_v10)(void *sender, void *data, size_t bytes, int tag, void *registration,
                                      void *parent, void **request);
typedef ncclResult_t (*abi_irecv_v6)(void *receiver, int count, void **data, int *bytes, int *tags,
                                     void **registrations, void **request);
typedef ncclResult_t (*abi_irecv_v9)(void *receiver, int count, void **data, size_t *bytes, int *tags,
                                     void **registrations, void **request);
typedef ncclResult_t (*abi_irecv_v10)(void *receiver, int count, void **data, size_t *bytes, int *tags,
                                      void **registrations, void **parents, void **request);

/* The table of all versions: 17 pointers in version 6, 19 in 7 and 8, 20 in 9 and 10, 22 from 11 on. */
struct abi_net {
  const char *name;
  union {
    abi_init_v6 v6; /* to version 9 */
    abi_init_v10 v10;
    abi_init_v11 v11;
  } init;
  ncclResult_t (*devices)(int *count);
  ncclResult_t (*properties)(int device, void *properties); /* one of struct abi_properties_v* */
  union {
    abi_listen_v10 v10;
    abi_listen_v11 v11;
  } listen;
  union {
    abi_connect_v6 v6;
    abi_connect_v7 v7; /* to version 9 */
    abi_connect_v10 v10;
    abi_connect_v11 v11;
  } connect;
  union {
    abi_accept_v6 v6;
    abi_accept_v7 v7;
  } accept;
  union {
    abi_register_v6 v6; /* and in version 7 */
    abi_register_v8 v8;
  } register_memory;
  ncclResult_t (*register_dmabuf)(void *connection, void *data, size_t bytes, int memory, uint64_t offset,
                                  int descriptor, void **registration);
  ncclResult_t (*unregister_memory)(void *connection, void *registration);
  union {
    abi_isend_v6 v6; /* to version 8 */
    abi_isend_v9 v9;
    abi_isend_v10 v10;
  } isend;
  union {
    abi_irecv_v6 v6; /* to version 8 */
    abi_irecv_v9 v9;
    abi_irecv_v10 v10;
  } irecv;
  ncclResult_t (*iflush)(void *receiver, int count, void **data, int *bytes, void **registrations,
                         void **request);
  ncclResult_t (*test)(void *request, int *done, int *bytes);
  ncclResult_t (*close_send)(void *sender);
  ncclResult_t (*close_recv)(void *receiver);
  ncclResult_t (*close_listen)(void *listener);
  /* from version 7 on */
  ncclResult_t (*device_registration)(void *connection, void *registration, void **device_registration);
  ncclResult_t (*recv_consumed)(void *receiver, int count, void *request);
  /* from version 9 on */
  ncclResult_t (*make_virtual)(int *device, void *parts);
  /* from version 11 on */
  ncclResult_t (*finalize)(void *context);
  ncclResult_t (*set_attributes)(void *context, void *attributes);
};

#endif
