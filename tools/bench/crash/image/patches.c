// patches PROCESSES THREADS lets several threads make the same system call for the first time at the same time, again and again, from code that was just
// written. gVisor replaces such code while it runs. It prints "ok", or how many calls had a wrong result.
#define _GNU_SOURCE
#include <pthread.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

enum { SITES = 120, CALLS = 30, DISTANCE = 4096 - 61 }; // so that sites lie across cache lines and pages, too

static unsigned char *code;
static atomic_int bad;
static int threads;
static pthread_barrier_t barrier;

// mov $number, %eax; syscall; ret
static void put(int site, uint32_t number) {
	unsigned char text[] = {0xb8, 0, 0, 0, 0, 0x0f, 0x05, 0xc3};
	memcpy(text + 1, &number, 4);
	memcpy(code + site * DISTANCE, text, sizeof text);
}

static void *work(void *unused) {
	long id = syscall(SYS_gettid), parent = getppid();
	for (int site = 0; site < SITES; site++) {
		long (*call)(void) = (long (*)(void))(code + site * DISTANCE);
		pthread_barrier_wait(&barrier);
		for (int i = 0; i < CALLS; i++)
			if (call() != (site % 2 ? id : parent)) bad++;
	}
	return 0;
}

static int child(void) {
	code = mmap(0, (SITES + 1) * 4096, PROT_READ | PROT_WRITE | PROT_EXEC, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	for (int site = 0; site < SITES; site++) put(site, site % 2 ? SYS_gettid : SYS_getppid);
	pthread_barrier_init(&barrier, 0, threads);
	pthread_t t[64];
	for (int i = 0; i < threads; i++) pthread_create(&t[i], 0, work, 0);
	for (int i = 0; i < threads; i++) pthread_join(t[i], 0);
	return bad != 0;
}

int main(int argc, char **argv) {
	int processes = argc > 1 ? atoi(argv[1]) : 10, wrong = 0;
	threads = argc > 2 && atoi(argv[2]) < 64 ? atoi(argv[2]) : 4;
	for (int i = 0; i < processes; i++) {
		pid_t p = fork();
		if (!p) _exit(child());
		int status;
		while (waitpid(p, &status, 0) < 0);
		if (WIFSIGNALED(status)) fprintf(stderr, "signal %d\n", WTERMSIG(status)), raise(WTERMSIG(status));
		wrong += status != 0;
	}
	if (wrong) printf("%d of %d processes\n", wrong, processes);
	else printf("ok\n");
	return wrong != 0;
}
