/* test_machine.c: the topology of a machine from a folder of the shape of /sys: switches, links, NUMA nodes,
 * ports and interfaces, values that are missing or make no sense, and no memory. tests/test_machines.sh has
 * whole machines. */
/* sanitizers: address */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <ftw.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/log.h"
#include "base/os.h"
#include "core/topology/machine.h"
#include "core/topology/topology_paths.h"
#include "random.h"

static char root[] = "/tmp/machine.XXXXXX";

/* One GPU and one NIC of two ports below a switch; an interface at a root port. */
#define BRIDGE "devices/pci0000:10/0000:10:00.0"
#define UP BRIDGE "/0000:11:00.0"
#define GPU_AT UP "/0000:12:00.0/0000:13:00.0"
#define NIC_AT UP "/0000:12:01.0/0000:14:00.0"
#define ETHERNET_AT "devices/pci0000:00/0000:00:05.0"

static const char *const gpus =
    "<system version=\"1\"><cpu numaid=\"-1\">"
    "<pci busid=\"0000:13:00.0\" class=\"0x030200\"><gpu dev=\"0\" sm=\"90\"/></pci>"
    "<pci busid=\"0000:77:00.0\" class=\"0x030200\"><gpu dev=\"1\" sm=\"90\"/></pci>"
    "</cpu></system>";

static void folders_make(const char *path) {
  char whole[1024];
  snprintf(whole, sizeof whole, "%s/%s", root, path);
  for (char *at = whole + strlen(root) + 1; *at != '\0'; at++) {
    if (*at != '/') continue;
    *at = '\0';
    mkdir(whole, 0700);
    *at = '/';
  }
}

static void value_write(const char *path, const char *text) {
  char whole[1024];
  folders_make(path);
  snprintf(whole, sizeof whole, "%s/%s", root, path);
  assert_true(os_file_write(whole, text, strlen(text)));
}

static void link_write(const char *path, const char *target) {
  char whole[1024], to[1024];
  folders_make(path);
  snprintf(whole, sizeof whole, "%s/%s", root, path);
  snprintf(to, sizeof to, "%s/%s", root, target);
  assert_int_equal(symlink(to, whole), 0);
}

static void function_write(const char *place, const char *pci_class, const char *speed, const char *width) {
  char path[1024];
  const char *const values[][2] = {
      {"class", pci_class}, {"max_link_speed", speed}, {"max_link_width", width}, {"numa_node", "1"}};
  for (size_t i = 0; i < sizeof values / sizeof values[0]; i++) {
    snprintf(path, sizeof path, "%s/%s", place, values[i][0]);
    value_write(path, values[i][1]);
  }
  snprintf(path, sizeof path, "bus/pci/devices/%s", strrchr(place, '/') + 1);
  link_write(path, place);
}

static int machine_begin(void **state) {
  (void)state;
  strcpy(root + strlen(root) - 6, "XXXXXX");
  if (mkdtemp(root) == NULL) return 1;
  value_write("nvml.xml", gpus);
  value_write("cpuinfo", "vendor_id\t: AuthenticAMD\ncpu family\t: 25\nmodel name\t: EPYC\nmodel\t\t: 17\n");
  value_write("devices/system/node/node0/cpumap", "00ff\n");
  value_write("devices/system/node/node1/cpumap", "ff00\n");
  function_write(BRIDGE, "0x060400", "32.0 GT/s PCIe", "16");
  function_write(UP, "0x060400", "16.0 GT/s PCIe", "16");
  function_write(UP "/0000:12:00.0", "0x060400", "32.0 GT/s PCIe", "8");
  function_write(UP "/0000:12:01.0", "0x060400", "32.0 GT/s PCIe", "16");
  function_write(GPU_AT, "0x030200", "32.0 GT/s PCIe", "16");
  function_write(NIC_AT, "0x020000", "Unknown", "255");
  function_write(ETHERNET_AT, "0x020000", "5.0 GT/s PCIe", "4");
  link_write("class/infiniband/mlx5_0/device", NIC_AT);
  value_write("class/infiniband/mlx5_0/sys_image_guid", "0c42:a103:0012:3456\n");
  value_write("class/infiniband/mlx5_0/ports/1/state", "4: ACTIVE\n");
  value_write("class/infiniband/mlx5_0/ports/1/rate", "200 Gb/sec (4X HDR)\n");
  value_write("class/infiniband/mlx5_0/ports/2/state", "1: DOWN\n");
  value_write("class/infiniband/mlx5_0/ports/10/state", "4: ACTIVE\n");
  value_write("class/net/eth0/operstate", "up\n");
  value_write("class/net/eth0/speed", "25000\n");
  link_write("class/net/eth0/device", ETHERNET_AT);
  return 0;
}

static int one_remove(const char *path, const struct stat *about, int kind, struct FTW *place) {
  (void)about, (void)kind, (void)place;
  return remove(path);
}

static int machine_end(void **state) {
  (void)state;
  return nftw(root, one_remove, 8, FTW_DEPTH | FTW_PHYS);
}

static const struct topology_device *row_named(const struct topology *topology, const char *name) {
  for (uint32_t i = 0; i < topology->device_count; i++)
    if (strcmp(topology->devices[i].name, name) == 0) return &topology->devices[i];
  fail_msg("there is no %s", name);
  return NULL;
}

static void rows_are_read(void **state) {
  struct topology topology;
  (void)state;
  assert_int_equal(machine_read(root, NULL, 3, &topology), ncclSuccess);
  assert_int_equal(topology.node_count, 3);
  assert_int_equal(topology.gpu_count, 2);
  assert_int_equal(topology.net_count, 2); /* ports 1 and 10 */
  const struct topology_device *up = row_named(&topology, "0000:11:00.0");
  const struct topology_device *gpu = row_named(&topology, "0000:13:00.0");
  const struct topology_device *nic = row_named(&topology, "0000:14:00.0");
  const struct topology_device *cpu = &topology.devices[up->parent];
  assert_true(up->link_gts == 16 && up->link_width == 16); /* the slower end */
  assert_true(gpu->link_gts == 32 && gpu->link_width == 8);
  assert_true(nic->link_gts == 32 && nic->link_width == 16); /* what the other end says */
  assert_true(&topology.devices[gpu->parent] == up && &topology.devices[nic->parent] == up);
  assert_int_equal(cpu->kind, TOPOLOGY_CPU);
  assert_int_equal(cpu->number, 1);
  assert_string_equal(cpu->maker, "AuthenticAMD");
  assert_string_equal(cpu->affinity, "ff00");
  assert_int_equal(cpu->family, 175); /* 25 as the processor encodes it */
  assert_int_equal(cpu->model, 17);
  const struct topology_device *first = &topology.devices[topology.nets[0]];
  const struct topology_device *second = &topology.devices[topology.nets[1]];
  assert_int_equal(first->port, 1);
  assert_int_equal(first->speed_mbits, 200000);
  assert_true(first->guid == UINT64_C(0x0c42a10300123456));
  assert_int_equal(second->port, 10);
  assert_int_equal(second->speed_mbits, 0);
  assert_int_equal(first->parent, second->parent);
  /* The other GPU is not in the folder: below a CPU whose number is not known. */
  const struct topology_device *lost = row_named(&topology, "0000:77:00.0");
  assert_int_equal(topology.devices[lost->parent].number, -1);
  topology_free(&topology);
}

static void ports_come_before_interfaces(void **state) {
  struct topology topology;
  (void)state;
  value_write("class/infiniband/mlx5_0/ports/1/state", "1: DOWN\n");
  value_write("class/infiniband/mlx5_0/ports/10/state", "2: INIT\n");
  assert_int_equal(machine_read(root, NULL, 1, &topology), ncclSuccess);
  assert_int_equal(topology.net_count, 1);
  assert_string_equal(topology.devices[topology.nets[0]].name, "eth0");
  assert_int_equal(topology.devices[topology.nets[0]].speed_mbits, 25000);
  topology_free(&topology);
  value_write("class/net/eth0/operstate", "down\n");
  assert_int_equal(machine_read(root, NULL, 1, &topology), ncclSuccess);
  assert_int_equal(topology.net_count, 0);
  topology_free(&topology);
}

/* Whatever the files contain, there is a topology of these GPUs, and paths. */
static void any_bytes_are_values(void **state) {
  static const char *const files[] = {GPU_AT "/class",
                                      NIC_AT "/max_link_speed",
                                      UP "/max_link_width",
                                      GPU_AT "/numa_node",
                                      "cpuinfo",
                                      "class/infiniband/mlx5_0/ports/1/rate",
                                      "class/infiniband/mlx5_0/ports/1/state",
                                      "class/infiniband/mlx5_0/sys_image_guid",
                                      "devices/system/node/node1/cpumap"};
  const struct paths_rules rules = PATHS_RULES_DEFAULT;
  uint64_t seed = 7;
  (void)state;
  for (int round = 0; round < 300; round++) {
    static const char letters[] = "0123456789-+.xeEaf :\n\tACTIVE";
    char text[600];
    const uint32_t length = random_below(&seed, sizeof text);
    for (uint32_t i = 0; i < length; i++) text[i] = letters[random_below(&seed, sizeof letters - 1)];
    text[length > 0 ? length - 1 : 0] = '\0';
    value_write(files[random_below(&seed, sizeof files / sizeof files[0])], text);
    struct topology topology;
    struct paths paths;
    assert_int_equal(machine_read(root, NULL, 1, &topology), ncclSuccess);
    assert_int_equal(topology.gpu_count, 2);
    assert_int_equal(paths_find(&topology, &rules, &paths), ncclSuccess);
    paths_free(&paths);
    topology_free(&topology);
  }
}

static void memory_runs_out(void **state) {
  struct topology topology;
  const uint64_t live = os_alloc_live();
  ncclResult_t result = ncclSystemError;
  uint32_t failures = 0;
  (void)state;
  for (uint64_t k = 1; k < 500; k++) {
    os_alloc_fail_at(k);
    result = machine_read(root, NULL, 1, &topology);
    os_alloc_fail_at(0);
    failures += result != ncclSuccess;
    if (result == ncclSuccess) topology_free(&topology); /* a file that was not read is an unknown value */
    assert_int_equal(os_alloc_live(), live);
  }
  assert_int_equal(result, ncclSuccess);
  assert_true(failures > 3);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test_setup_teardown(rows_are_read, machine_begin, machine_end),
      cmocka_unit_test_setup_teardown(ports_come_before_interfaces, machine_begin, machine_end),
      cmocka_unit_test_setup_teardown(any_bytes_are_values, machine_begin, machine_end),
      cmocka_unit_test_setup_teardown(memory_runs_out, machine_begin, machine_end),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
