/* net_abi.h: the binary interface of NCCL's network plugins, versions 10 to 12: what libnccl-net-NAME.so
 * exports as ncclNetPlugin_v10, _v11 or _v12. Order and types of the members define the interface; the names
 * are this library's. How a plugin is found or used is elsewhere (plugin/). */
#ifndef TUTTI_BACKENDS_NET_ABI_H
#define TUTTI_BACKENDS_NET_ABI_H

#include <stddef.h>
#include <stdint.h>

#include "nccl.h"

#define ABI_OLDEST 10
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

/* Properties of a device: the part that is common to all versions. */
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
struct abi_properties_v10 {
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
/* What a caller passes to `properties`: later versions have added members at the end. */
union abi_properties {
  struct abi_device device;
  struct abi_properties_v10 v10;
  struct abi_properties_v11 v11;
  struct abi_properties_v12 v12;
  char capacity[512];
};

/* From version 11 on there is one context per communicator. */
typedef ncclResult_t (*abi_init_v10)(abi_log log, abi_profile profile);
typedef ncclResult_t (*abi_init_v11)(void **context, uint64_t comm_id, struct abi_config *config, abi_log log,
                                     abi_profile profile);
typedef ncclResult_t (*abi_listen_v10)(int device, void *handle, void **listener);
typedef ncclResult_t (*abi_listen_v11)(void *context, int device, void *handle, void **listener);
typedef ncclResult_t (*abi_connect_v10)(int device, struct abi_config *config, void *handle, void **sender,
                                        void **offload);
typedef ncclResult_t (*abi_connect_v11)(void *context, int device, void *handle, void **sender,
                                        void **offload);

/* The table of all three versions: 20 pointers in version 10, 22 from version 11 on. */
struct abi_net {
  const char *name;
  union {
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
    abi_connect_v10 v10;
    abi_connect_v11 v11;
  } connect;
  ncclResult_t (*accept)(void *listener, void **receiver, void **offload);
  ncclResult_t (*register_memory)(void *connection, void *data, size_t bytes, int memory,
                                  void **registration);
  ncclResult_t (*register_dmabuf)(void *connection, void *data, size_t bytes, int memory, uint64_t offset,
                                  int descriptor, void **registration);
  ncclResult_t (*unregister_memory)(void *connection, void *registration);
  ncclResult_t (*isend)(void *sender, void *data, size_t bytes, int tag, void *registration, void *parent,
                        void **request);
  ncclResult_t (*irecv)(void *receiver, int count, void **data, size_t *bytes, int *tags,
                        void **registrations, void **parents, void **request);
  ncclResult_t (*iflush)(void *receiver, int count, void **data, int *bytes, void **registrations,
                         void **request);
  ncclResult_t (*test)(void *request, int *done, int *bytes);
  ncclResult_t (*close_send)(void *sender);
  ncclResult_t (*close_recv)(void *receiver);
  ncclResult_t (*close_listen)(void *listener);
  ncclResult_t (*device_registration)(void *connection, void *registration, void **device_registration);
  ncclResult_t (*recv_consumed)(void *receiver, int count, void *request);
  ncclResult_t (*make_virtual)(int *device, void *parts);
  /* from version 11 on */
  ncclResult_t (*finalize)(void *context);
  ncclResult_t (*set_attributes)(void *context, void *attributes);
};
#define ABI_POINTERS_V10 20
#define ABI_POINTERS_V11 22

#endif
