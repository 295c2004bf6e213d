"""One guest: a QEMU process, and the channels between it and the rig.

QEMU inherits all channels as descriptors. So a run leaves no file behind, however it ends, and several runs may go on at
once.
"""

import fcntl
import os
import socket
import subprocess

import image

MEMORY_MIB = 4096

# The clock is the processors' counter.
COUNTERS = "tsc=reliable clocksource=tsc"

# QEMU's names of the links between the guests: the cable of eth0, and that of eth1.
LINKS = ("link", "link1")


class Guest:
    """A guest, from its boot on. `links` are its ends of the links to the other guest, if there are two."""

    def __init__(self, number, processors, kernel, files, links, folder):
        self.number = number
        self.status = None
        self.output, output = os.pipe()
        self.control, control = socket.socketpair()
        self.cable, cable = socket.socketpair()
        self.monitor, monitor = socket.socketpair()
        self.console = os.memfd_create("console")
        # QEMU's own messages are between those of the guest.
        fcntl.fcntl(self.console, fcntl.F_SETFL, os.O_APPEND)
        initial = os.memfd_create("initial-file-system")
        with open(initial, "wb", closefd=False) as file:
            file.write(image.archive(files))
        options = [
            *hardware(number, processors, kernel, initial),
            *("-serial", "chardev:console", "-chardev", f"file,id=console,path=/dev/fd/{self.console},append=on"),
            *port(1, "output", f"file,id=output,path=/dev/fd/{output}"),
            *port(2, "control", f"socket,id=control,fd={control.fileno()}"),
            *port(3, "cable", f"socket,id=cable,fd={cable.fileno()}"),
            *("-mon", "chardev=monitor", "-chardev", f"socket,id=monitor,fd={monitor.fileno()}"),
            *shared("tree", "/", ",readonly=on"),
            *(shared("work", folder, "") if folder else []),
            *(option for card, name in enumerate(LINKS) for option in network(number, card, name, links)),
        ]
        # setpriv: the kernel ends QEMU with the rig, even if the rig is killed.
        command = ["setpriv", "--pdeathsig", "KILL", "qemu-system-x86_64", *options]
        ends = [control, cable, monitor, *links]
        inherited = [output, self.console, initial] + [end.fileno() for end in ends]
        self.process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stderr=self.console, pass_fds=inherited)
        os.close(output)
        os.close(initial)
        for end in ends:
            end.close()

    def end(self):
        """Ends it at once. What it has printed can still be read."""
        self.process.kill()
        self.process.wait()

    def console_text(self):
        """What its kernel and its setup have said."""
        os.lseek(self.console, 0, os.SEEK_SET)
        with open(self.console, errors="replace", closefd=False) as console:
            return console.read().strip()


def hardware(number, processors, kernel, initial):
    """A computer that is emulated in software, also where there is KVM: so it is the same one everywhere."""
    return [
        *("-name", f"soft-roce-{number}", "-nodefaults", "-no-user-config", "-display", "none"),
        *("-accel", "tcg,thread=multi", "-cpu", "max", "-smp", str(processors), "-m", str(MEMORY_MIB)),
        *("-kernel", str(kernel.image), "-initrd", f"/dev/fd/{initial}"),
        # A kernel that panics starts the computer again at once, which ends QEMU.
        # The kernel would distrust emulated counters, and read a slow timer on the bus instead.
        *("-append", f"console=ttyS0 quiet loglevel=4 mitigations=off {COUNTERS} panic=-1", "-no-reboot"),
        *("-device", "virtio-serial-pci"),
    ]


def port(number, name, channel):
    """A serial port, which is /dev/vport0pNUMBER in the guest."""
    return ["-chardev", channel, "-device", f"virtserialport,nr={number},chardev={name}"]


def shared(tag, folder, more):
    """A folder of this machine."""
    # A comma in a value is doubled.
    path = str(folder).replace(",", ",,")
    return ["-virtfs", f"local,path={path},mount_tag={tag},security_model=none,multidevs=remap{more}"]


def network(number, card, name, links):
    """A network card of the guest; that of a guest on its own is at a hub without other ports."""
    other_end = f"socket,fd={links[card].fileno()}" if links else f"hubport,hubid={card}"
    # Without a file of boot code, which may not be installed.
    device = f"virtio-net-pci,netdev={name},mac=52:54:00:00:{card:02x}:{number + 1:02x},romfile="
    return ["-netdev", f"{other_end},id={name}", "-device", device]
