# One step of one job of P8, in the current directory: JOB prepare|run CORES. The same text runs inside and on the host.
job=$1 step=$2 cores=$3

# A tree of 5,000 files of about 1 KB in 100 directories.
make_tree() {
	python3 - <<'PY'
import os
for d in range(100):
    os.makedirs(f"tree/d{d}")
    for f in range(50):
        with open(f"tree/d{d}/f{f}.txt", "w") as out:
            out.write(f"file {f} of directory {d}\n" * 40)
PY
}

case $job-$step in
git-prepare | tar-prepare) make_tree ;;
git-run)
	export HOME=$PWD
	git config --global user.name Bench
	git config --global user.email bench@localhost
	git config --global safe.directory '*'
	git -C tree init -q -b main
	git -C tree add -A
	git -C tree commit -q -m one
	git clone -q --no-local tree copy
	test "$(git -C copy ls-files | wc -l)" = 5000
	;;
tar-run)
	tar czf tree.tgz tree
	mkdir out
	tar xzf tree.tgz -C out
	test "$(find out -type f | wc -l)" = 5000
	;;
compileall-prepare)
	cp -r "$(python3 -c 'import os; print(os.path.dirname(os.__file__))')" lib
	find lib -name __pycache__ -prune -exec rm -r {} +
	;;
compileall-run) python3 -m compileall -q lib ;;
gcc-prepare)
	i=0
	while [ $i -lt 20 ]; do
		{
			printf '#include <%s.h>\n' stdio stdlib string
			j=0
			while [ $j -lt 20 ]; do
				printf 'int f%d_%d(int n) { char b[64]; int s = %d; for (int k = 0; k < n; k++) { snprintf(b, sizeof b, "%%d", k * s); s += atoi(b) ^ (int)strlen(b); } return s; }\n' $i $j $j
				j=$((j + 1))
			done
		} >part$i.c
		echo "int f${i}_0(int);"
		i=$((i + 1))
	done >parts.h
	cat >main.c <<'C'
#include <stdio.h>
#include "parts.h"
int main(void) { printf("%d\n", f0_0(1) + f19_0(1)); return 0; }
C
	printf 'prog: main.o %s\n\t$(CC) -o $@ $^\n' "$(seq -f 'part%g.o' -s ' ' 0 19)" >Makefile
	;;
gcc-run)
	make -s -j"$cores" CC=gcc CFLAGS=-O1
	./prog
	;;
sqlite-prepare) ;;
sqlite-run)
	# Nothing waits for the disk: on neither side is that what is measured.
	python3 - <<'PY'
import sqlite3
db = sqlite3.connect("bench.db")
db.execute("pragma synchronous = off")
db.execute("create table t (id integer primary key, name text, value real)")
db.execute("create index by_name on t (name)")
with db:
    db.executemany("insert into t (name, value) values (?, ?)", ((f"name {i * 7919 % 100000}", i / 3) for i in range(100_000)))
for i in range(500):
    with db:
        db.execute("insert into t (name, value) values (?, ?)", (f"one {i}", i))
assert db.execute("select count(*) from t where name >= 'name 5'").fetchone()[0] > 0
PY
	;;
files-prepare) ;;
files-run)
	python3 - <<'PY'
import os
for d in range(50):
    os.makedirs(f"many/d{d}")
    for f in range(100):
        with open(f"many/d{d}/f{f}", "wb") as out:
            out.write(b"x" * 512)
size = 0
for where, _, names in os.walk("many"):
    for name in names:
        path = os.path.join(where, name)
        size += os.stat(path).st_size
        with open(path, "rb") as f:
            f.read()
assert size == 5000 * 512
PY
	;;
spawn-prepare) ;;
spawn-run)
	i=0
	while [ $i -lt 500 ]; do
		/bin/true
		i=$((i + 1))
	done
	;;
*)
	echo "there is no step $step of job $job" >&2
	exit 1
	;;
esac
