"""Makes folders of the shape of /sys that describe machines, for `tutti topo --sysfs` and TUTTI_SYSFS.

    python3 tests/machines/make.py FOLDER [MACHINE...]

Each machine is built from public descriptions: the output of `nvidia-smi topo -m`, topologies that NCCL
dumped or that clouds ship for NCCL_TOPO_FILE, and makers' block diagrams. The PCI names are made up where the
source has none. README.md names the sources.
"""
import os
import sys

GEN3, GEN4, GEN5 = '8.0 GT/s PCIe', '16.0 GT/s PCIe', '32.0 GT/s PCIe'


class Machine:
    """A machine being described: devices below root ports, in the order in which they are added."""

    def __init__(self, cpuinfo, numa_nodes):
        self.cpuinfo, self.numa_nodes = cpuinfo, numa_nodes
        self.functions, self.gpus, self.nets, self.interfaces = [], [], [], []
        self.peermem, self.next_bus, self.next_domain = False, 0x01, 0

    def bus(self):
        self.next_bus += 1
        if self.next_bus > 0xf0:
            self.next_bus, self.next_domain = 0x01, self.next_domain + 1
        return '%04x:%02x:00.0' % (self.next_domain, self.next_bus)

    def function(self, parent, name, pci_class, speed, width, numa):
        place = '%s/%s' % (parent, name)
        self.functions.append((place, name, pci_class, speed, width, numa))
        return place

    def root(self, numa, speed=GEN5, width=16):
        """A root port; the place of what is below it."""
        name = self.bus()
        bridge = 'devices/pci%s' % name[:7]
        return self.function(bridge, name, '0x060400', speed, width, numa), numa, speed

    def switch(self, above, speed=None):
        """An upstream port. Each device below it gets a downstream port of its own."""
        place, numa, own = above
        speed = speed or own
        return self.function(place, self.bus(), '0x060400', speed, 16, numa), numa, speed

    def below(self, above):
        """A downstream port of a switch; a root port has none."""
        place, numa, speed = above
        if place.count('/') < 3:
            return above
        return self.function(place, self.bus(), '0x060400', speed, 16, numa), numa, speed

    def gpu(self, above, sm, links=(), name=None, speed=None, c2c=None):
        place, numa, own = self.below(above)
        name = name or self.bus()
        self.function(place, name, '0x030200', speed or own, 16, numa)
        self.gpus.append((name, sm, links, c2c))

    def nic(self, above, device, gbits, speed=None, width=16, ports=1, infiniband=True, name=None, down=()):
        place, numa, own = self.below(above)
        pci_class = '0x020700' if infiniband else '0x020000'
        place = self.function(place, name or self.bus(), pci_class, speed or own, width, numa)
        self.nets.append((device, place, gbits, ports, infiniband, down))


def write(path, text):
    os.makedirs(os.path.dirname(path), exist_ok=True)
    with open(path, 'w') as file:
        file.write(text + '\n')


def link(folder, path, target):
    whole = os.path.join(folder, path)
    os.makedirs(os.path.dirname(whole), exist_ok=True)
    os.symlink(os.path.relpath(os.path.join(folder, target), os.path.dirname(whole)), whole)


def write_gpus(machine, folder):
    lines = ['<system version="1">', '  <cpu numaid="-1">']
    for number, (name, sm, links, c2c) in enumerate(machine.gpus):
        lines += ['    <pci busid="%s" class="0x030200">' % name,
                  '      <gpu dev="%d" sm="%d" gdr="1">' % (number, sm)]
        for target, count in links:
            kind = '0x030200' if isinstance(target, int) else '0x068000'
            target = machine.gpus[target][0] if isinstance(target, int) else target
            lines.append('        <nvlink target="%s" count="%d" tclass="%s"/>' % (target, count, kind))
        if c2c:
            lines.append('        <c2c bw="%d" count="%d"/>' % c2c)
        lines += ['      </gpu>', '    </pci>']
    write(os.path.join(folder, 'nvml.xml'), '\n'.join(lines + ['  </cpu>', '</system>']))


def write_nets(machine, folder):
    for device, place, gbits, ports, infiniband, down in machine.nets:
        base = 'class/infiniband/' + device
        link(folder, base + '/device', place)
        write(os.path.join(folder, base, 'sys_image_guid'), '0c42:a103:0000:%04x' % hash_of(place))
        for port in range(1, ports + 1):
            at = os.path.join(folder, base, 'ports/%d/' % port)
            write(at + 'state', '1: DOWN' if port in down else '4: ACTIVE')
            write(at + 'rate', '%d Gb/sec (4X)' % gbits)
            write(at + 'link_layer', 'InfiniBand' if infiniband else 'Ethernet')
    for device, place, mbits, up in machine.interfaces:
        link(folder, 'class/net/%s/device' % device, place)
        write(os.path.join(folder, 'class/net', device, 'operstate'), 'up' if up else 'down')
        write(os.path.join(folder, 'class/net', device, 'speed'), str(mbits))


def hash_of(text):
    value = 0
    for letter in text:
        value = (value * 31 + ord(letter)) & 0xffff
    return value


def make(machine, folder):
    os.makedirs(folder)
    write(os.path.join(folder, 'cpuinfo'), machine.cpuinfo)
    for node in range(machine.numa_nodes):
        write(os.path.join(folder, 'devices/system/node/node%d/cpumap' % node), '%08x' % (0xf << 4 * node))
    for place, name, pci_class, speed, width, numa in machine.functions:
        at = os.path.join(folder, place) + '/'
        write(at + 'class', pci_class)
        write(at + 'numa_node', str(numa))
        write(at + 'vendor', {'0x03': '0x10de', '0x02': '0x15b3'}.get(pci_class[:4], '0x1000'))
        if speed:
            write(at + 'max_link_speed', speed)
            write(at + 'max_link_width', str(width))
        link(folder, 'bus/pci/devices/' + name, place)
    write_gpus(machine, folder)
    write_nets(machine, folder)
    if machine.peermem:
        os.makedirs(os.path.join(folder, 'module/nvidia_peermem'))


# ---- processors

def intel(model):
    return ('processor\t: 0\nvendor_id\t: GenuineIntel\ncpu family\t: 6\nmodel\t\t: %d\nmodel name\t: Xeon'
            % model)


def amd(family, model):
    return ('processor\t: 0\nvendor_id\t: AuthenticAMD\ncpu family\t: %d\nmodel\t\t: %d\nmodel name\t: EPYC'
            % (family, model))


GRACE = 'processor\t: 0\nCPU implementer\t: 0x41\nCPU architecture: 8\nCPU part\t: 0xd4f'
NVSWITCH = 'ffff:ff:00.0'


# ---- machines

def dgx_a100():
    """Two AMD Rome of four NUMA nodes. Below each of four root ports a switch has two switches of its own:
    every GPU is several switches from every NIC. A NIC of two ports at each socket is for storage."""
    machine = Machine(amd(23, 49), 8)
    machine.peermem = True
    switches = [('0000:%02x:00.0' % bus, 2) for bus in range(0xc4, 0xca)]
    for index, numa in enumerate((3, 1, 7, 5)):
        top = machine.switch(machine.root(numa, GEN4))
        first = machine.switch(machine.below(top))
        second = machine.switch(machine.below(top))
        for part in (first, second):
            machine.gpu(machine.switch(machine.below(part)), 80, switches)
        number = (0, 2, 6, 8)[index]
        machine.nic(first, 'mlx5_%d' % number, 200)
        machine.nic(second, 'mlx5_%d' % (number + 1), 200)
    for numa, number in ((3, 4), (7, 10)):
        root = machine.root(numa, GEN4)
        machine.nic(root, 'mlx5_%d' % number, 200, infiniband=False)
        machine.nic(machine.root(numa, GEN4), 'mlx5_%d' % (number + 1), 200, infiniband=False)
    return machine


def hgx(sm, model, storage):
    """Two Intel sockets; four switches each, of a GPU and a NIC."""
    machine = Machine(intel(model), 2)
    machine.peermem = True
    names = [0, 1, 2, 5, 6, 7, 8, 9] if storage else range(8)
    for index in range(8):
        switch = machine.switch(machine.root(index // 4))
        machine.gpu(switch, sm, [(NVSWITCH, 18)])
        machine.nic(switch, 'mlx5_%d' % names[index], 400)
    if storage:
        for number in (3, 4):
            machine.nic(machine.root(0, GEN4), 'mlx5_%d' % number, 100, infiniband=False)
    return machine


def p4d():
    """Four switches of two GPUs and a NIC."""
    machine = Machine(intel(85), 2)
    for index in range(4):
        switch = machine.switch(machine.root(index // 2, GEN3))
        for _ in range(2):
            machine.gpu(switch, 80, [(NVSWITCH, 12)])
        machine.nic(switch, 'rdmap%d' % index, 100)
    return machine


def p5():
    """Eight switches of a GPU and four NICs of 100 Gbit/s, all of one NUMA node."""
    machine = Machine(amd(25, 1), 1)
    for index in range(8):
        switch = machine.switch(machine.root(0, GEN4))
        machine.gpu(switch, 90, [(NVSWITCH, 18)], speed=GEN5)
        for nic in range(4):
            machine.nic(switch, 'rdmap%d' % (4 * index + nic), 100, width=8, infiniband=False)
    return machine


def roce_box():
    """Four NICs for eight GPUs: a switch has two GPUs and a NIC. The NICs have two ports, one without a
    cable."""
    machine = Machine(intel(106), 2)
    machine.peermem = True
    for index in range(4):
        switch = machine.switch(machine.root(index // 2, GEN4))
        for _ in range(2):
            machine.gpu(switch, 80, [(NVSWITCH, 12)])
        machine.nic(switch, 'mlx5_%d' % index, 200, infiniband=False, ports=2, down=(2,))
    return machine


def l4_switches():
    """Eight GPUs without NVLink, four below a switch; a NIC at each socket."""
    machine = Machine(intel(106), 2)
    for numa in range(2):
        switch = machine.switch(machine.root(numa, GEN4))
        for _ in range(4):
            machine.gpu(switch, 89, speed=GEN4)
        machine.nic(machine.root(numa, GEN4), 'mlx5_%d' % numa, 100, infiniband=False)
    return machine


def l4_flat():
    """The same GPUs, each at a root port."""
    machine = Machine(amd(25, 17), 2)
    for index in range(8):
        machine.gpu(machine.root(index // 4, GEN4), 89)
    for numa in range(2):
        machine.nic(machine.root(numa, GEN4), 'mlx5_%d' % numa, 100, infiniband=False)
    return machine


def dgx_1():
    """NVLinks between GPUs, without a switch: a cube with diagonals. Four NICs, each with two GPUs."""
    machine = Machine(intel(79), 2)
    machine.peermem = True
    links = ({1: 1, 2: 1, 3: 2, 4: 2}, {0: 1, 2: 2, 3: 1, 5: 2},
             {0: 1, 1: 2, 3: 2, 6: 1}, {0: 2, 1: 1, 2: 2, 7: 1},
             {0: 2, 5: 1, 6: 1, 7: 2}, {1: 2, 4: 1, 6: 2, 7: 1},
             {2: 1, 4: 1, 5: 2, 7: 2}, {3: 1, 4: 2, 5: 1, 6: 2})
    for index in range(4):
        switch = machine.switch(machine.root(index // 2, GEN3))
        for gpu in (2 * index, 2 * index + 1):
            machine.gpu(switch, 70, sorted(links[gpu].items()))
        machine.nic(switch, 'mlx5_%d' % index, 100)
    return machine


def gb200_tray():
    """Two Grace processors of two GPUs each, which they reach without PCIe; a NIC for each GPU at a root
    port."""
    machine = Machine(GRACE, 2)
    for index in range(4):
        numa = index // 2
        machine.gpu(machine.root(numa), 100, [(NVSWITCH, 18)], c2c=(44712, 5))
        machine.nic(machine.root(numa), 'mlx5_%d' % index, 400)
    return machine


def gh200():
    """One Grace Hopper: no NVLink, pages of 64 KiB."""
    machine = Machine(GRACE, 1)
    machine.gpu(machine.root(0), 90, c2c=(44712, 10))
    machine.nic(machine.root(0), 'mlx5_0', 200, infiniband=False)
    return machine


def flat_vm():
    """A virtual machine: all devices on one bus, without speeds, widths or NUMA nodes. An interface without a
    cable is left out."""
    machine = Machine(amd(25, 1), 1)
    bus = 'devices/pci0000:00'
    for number in range(8):
        machine.function(bus, '0000:00:%02x.0' % (0x16 + number), '0x030200', None, 0, -1)
        machine.gpus.append(('0000:00:%02x.0' % (0x16 + number), 86, (), None))
    for number in range(2):
        place = machine.function(bus, '0000:00:%02x.0' % (5 + number), '0x020000', None, 0, -1)
        machine.interfaces.append(('ens%d' % (5 + number), place, -1, number == 0))
    return machine


def two_ports():
    """One GPU in slices (MIG) or whole: what the kernel says is the same. A NIC of two active ports."""
    machine = Machine(intel(143), 2)
    switch = machine.switch(machine.root(1))
    machine.gpu(switch, 90)
    machine.nic(switch, 'mlx5_0', 200, ports=2)
    return machine


def two_nics():
    """The emulated runtime's first two GPUs, each with the other's NIC beside it, at two sockets."""
    machine = Machine(intel(143), 2)
    machine.next_bus = 0x10
    for numa in range(2):
        switch = machine.switch(machine.root(numa))
        machine.gpu(switch, 90, name='0000:%02x:00.0' % (1 + numa))
        port = machine.below(switch)[0]
        place = machine.function(port, '0000:%02x:00.0' % (6 - numa), '0x020000', GEN5, 16, numa)
        machine.interfaces.append(('nic%d' % (1 - numa), place, 10000, True))
    return machine


MACHINES = {
    'dgx-1': dgx_1, 'dgx-a100': dgx_a100, 'dgx-h100': lambda: hgx(90, 143, True),
    'hgx-h200': lambda: hgx(90, 207, False), 'hgx-b200': lambda: hgx(100, 207, False), 'p4d': p4d, 'p5': p5,
    'roce-box': roce_box, 'l4-switches': l4_switches, 'l4-flat': l4_flat, 'gb200-tray': gb200_tray,
    'gh200': gh200, 'flat-vm': flat_vm, 'two-ports': two_ports, 'two-nics': two_nics,
}

if __name__ == '__main__':
    for given in sys.argv[2:] or MACHINES:
        make(MACHINES[given](), os.path.join(sys.argv[1], given))
