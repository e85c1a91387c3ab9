"""What every benchmark does with its figures: prints them beside the machine and its load, keeps
them in a file and says which goals were missed."""

import datetime
import os
import pathlib
import platform


class Report:
    """Made before the measurement, so that it knows the load the machine had."""

    def __init__(self, name, title):
        self.name, self.title = name, title
        self.load_before = os.getloadavg()[0]
        self.missed = []

    def expect(self, holds, text):
        """A goal; `text` says what was measured and what was wanted."""
        if not holds:
            self.missed.append(text)

    def machine(self):
        cpu = " ".join([platform.machine(), *cpu_names()])
        return (f"Machine: {os.cpu_count()} cores, {cpu}, {platform.system()} "
                f"{platform.release()}; load average before {self.load_before:.2f}, after "
                f"{os.getloadavg()[0]:.2f}.")

    def end(self, args, command, lines, notes):
        """Prints, and writes to the folder args.save if there is one. Returns the exit code: 1 when
        a goal was missed and args.check asks for it."""
        text = "\n".join([*lines, "", self.machine(), notes])
        print(text)
        if args.save:
            today = datetime.date.today().isoformat()
            folder = pathlib.Path(args.save)
            folder.mkdir(parents=True, exist_ok=True)
            path = folder / f"{today}-{self.name}.md"
            path.write_text(f"# {self.title}, {today}\n\n`{command}`\n\n{text}\n")
            print(f"written to {path}")
        for miss in self.missed:
            print(f"goal missed: {miss}")
        return 1 if args.check and self.missed else 0


def cpu_names():
    try:
        with open("/proc/cpuinfo") as lines:
            return sorted({line.split(":")[1].strip() for line in lines
                           if line.startswith("model name")})
    except OSError:
        return []
