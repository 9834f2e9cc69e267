/* pci.c: see pci.h. */
#include "base/pci.h"

#include <stdio.h>
#include <string.h>

bool pci_name(const char *bus_id, char name[PCI_NAME_BYTES]) {
  unsigned domain = 0, bus = 0, device = 0, function = 0;
  char rest = 0;
  if (strspn(bus_id, "0123456789abcdefABCDEF:.") != strlen(bus_id)) return false;
  if (sscanf(bus_id, "%8x:%2x:%2x.%1x%c", &domain, &bus, &device, &function, &rest) != 4) return false;
  snprintf(name, PCI_NAME_BYTES, "%04x:%02x:%02x.%x", domain, bus, device, function);
  return true;
}
