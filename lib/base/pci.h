/* pci.h: names of PCI devices. */
#ifndef TUTTI_BASE_PCI_H
#define TUTTI_BASE_PCI_H

#include <stdbool.h>

#define PCI_NAME_BYTES 32

/* Converts a bus id in any case, with a domain of four or eight digits ("00000000:3B:00.0"), to the kernel's
 * spelling ("0000:3b:00.0"). False if it is not a bus id. */
bool pci_name(const char *bus_id, char name[PCI_NAME_BYTES]);

#endif
