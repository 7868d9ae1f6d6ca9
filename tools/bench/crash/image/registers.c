// registers SECONDS THREADS fills the processor's registers, is interrupted, and compares. It prints "ok", or what differs.
//
// Each thread holds patterns in the vector and mask registers, in the x87 stack, in the control words, in the general registers and in the
// red zone while something happens: a system call, the same one many times (gVisor replaces such an instruction by a jump), a loop that is preempted,
// a page fault. Beside that SIGALRM arrives each millisecond, whose handler uses the same registers, and processes fork and end.
#define _GNU_SOURCE
#include <pthread.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

static volatile long bad, rounds;
static int seconds;

static uint64_t next(uint64_t *x) {
	*x ^= *x << 13, *x ^= *x >> 7, *x ^= *x << 17;
	return *x;
}

static void differs(const char *what, int n, const char *event) {
	if (__sync_fetch_and_add(&bad, 1) < 5) fprintf(stderr, "%s %d differs after %s\n", what, n, event);
}

// An event happens while the registers hold patterns. It is assembly, which may change rax, rcx, r11, rdi, rsi, rdx, and has the address of a page in r8.
#define CALL "mov $110, %%eax\n\tsyscall\n\t" /* getppid */
#define YIELD "mov $24, %%eax\n\tsyscall\n\t"
#define HOT "mov $3000, %%edi\n1:\tmov $110, %%eax\n\tsyscall\n\tdec %%edi\n\tjnz 1b\n\t"
#define SPIN "mov $60000, %%ecx\n1:\tdec %%ecx\n\tjnz 1b\n\t"
#define FAULT "mov $28, %%eax\n\tmov %%r8, %%rdi\n\tmov $4096, %%esi\n\tmov $4, %%edx\n\tsyscall\n\tincq (%%r8)\n\t" /* madvise(MADV_DONTNEED) */
#define SLEEP "movq $0, (%%r8)\n\tmovq $1000, 8(%%r8)\n\tmov $35, %%eax\n\tmov %%r8, %%rdi\n\txor %%esi, %%esi\n\tsyscall\n\t" /* nanosleep */

#define R16(f) f(0) f(1) f(2) f(3) f(4) f(5) f(6) f(7) f(8) f(9) f(10) f(11) f(12) f(13) f(14) f(15)
#define R32(f) R16(f) f(16) f(17) f(18) f(19) f(20) f(21) f(22) f(23) f(24) f(25) f(26) f(27) f(28) f(29) f(30) f(31)
#define K7(f) f(1) f(2) f(3) f(4) f(5) f(6) f(7)
#define LOADZ(n) "vmovdqu64 " #n "*64(%%r9), %%zmm" #n "\n\t"
#define STOREZ(n) "vmovdqu64 %%zmm" #n ", " #n "*64(%%r10)\n\t"
#define LOADK(n) "kmovq 2048+" #n "*8(%%r9), %%k" #n "\n\t"
#define STOREK(n) "kmovq %%k" #n ", 2048+" #n "*8(%%r10)\n\t"
#define LOADY(n) "vmovdqu " #n "*32(%%r9), %%ymm" #n "\n\t"
#define STOREY(n) "vmovdqu %%ymm" #n ", " #n "*32(%%r10)\n\t"
#define LOADX(n) "movdqu " #n "*16(%%r9), %%xmm" #n "\n\t"
#define STOREX(n) "movdqu %%xmm" #n ", " #n "*16(%%r10)\n\t"
#define CLOBBER "rax", "rcx", "rdx", "rsi", "rdi", "r11", "memory", "cc", "xmm0", "xmm1", "xmm2", "xmm3", "xmm4", "xmm5", "xmm6", "xmm7", "xmm8", "xmm9", "xmm10", "xmm11", "xmm12", \
	"xmm13", "xmm14", "xmm15"

enum { VECTORS = 2048 + 64 };

// check runs the assembly and compares count parts of size bytes.
#define CHECK(what, event, size, count, from, ...) { \
	register void *page_ __asm__("r8") = page; \
	register void *in_ __asm__("r9") = in; \
	register void *out_ __asm__("r10") = out; \
	__asm__ volatile(__VA_ARGS__ : : "r"(page_), "r"(in_), "r"(out_) : CLOBBER); \
	for (int i = 0; i < (count); i++) \
		if (memcmp(in + (from) + i * (size), out + (from) + i * (size), size)) differs(what, i, event); \
	}

#define AVX512(event, name) CHECK("zmm", name, 64, 32, 0, R32(LOADZ) K7(LOADK) event R32(STOREZ) K7(STOREK) "vzeroupper\n\t") \
	for (int i = 1; i < 8; i++) \
		if (memcmp(in + 2048 + i * 8, out + 2048 + i * 8, 8)) differs("k", i, name);
#define AVX(event, name) CHECK("ymm", name, 32, 16, 0, R16(LOADY) event R16(STOREY) "vzeroupper\n\t")
#define SSE(event, name) CHECK("xmm", name, 16, 16, 0, R16(LOADX) event R16(STOREX))
// The control words of x87 (rounding, precision) and of SSE, and two numbers on the x87 stack.
#define CONTROL(event, name) CHECK("control word", name, 8, 2, 0, \
	"fldcw (%%r9)\n\tldmxcsr 8(%%r9)\n\tfldl 16(%%r9)\n\tfldl 24(%%r9)\n\t" event \
	"fnstcw (%%r10)\n\tstmxcsr 8(%%r10)\n\tfstpl 24(%%r10)\n\tfstpl 16(%%r10)\n\tfninit\n\t") \
	if (memcmp(in + 16, out + 16, 16)) differs("x87 stack", 0, name);
// General registers that calls keep, and the red zone.
#define GENERAL(event, name) CHECK("general register", name, 8, 6, 0, \
	"push %%rbx\n\tpush %%rbp\n\tpush %%r12\n\tpush %%r13\n\tpush %%r14\n\tpush %%r15\n\t" \
	"mov (%%r9), %%rbx\n\tmov 8(%%r9), %%rbp\n\tmov 16(%%r9), %%r12\n\tmov 24(%%r9), %%r13\n\tmov 32(%%r9), %%r14\n\tmov 40(%%r9), %%r15\n\t" \
	"mov %%rbx, -8(%%rsp)\n\tmov %%r15, -128(%%rsp)\n\t" event \
	"xor -8(%%rsp), %%rbx\n\txor (%%r9), %%rbx\n\txor -128(%%rsp), %%r15\n\txor 40(%%r9), %%r15\n\t" \
	"mov %%rbx, (%%r10)\n\tmov %%rbp, 8(%%r10)\n\tmov %%r12, 16(%%r10)\n\tmov %%r13, 24(%%r10)\n\tmov %%r14, 32(%%r10)\n\tmov %%r15, 40(%%r10)\n\t" \
	"pop %%r15\n\tpop %%r14\n\tpop %%r13\n\tpop %%r12\n\tpop %%rbp\n\tpop %%rbx\n\t")

#define EVENTS(kind) kind(CALL, "a system call") kind(YIELD, "sched_yield") kind(HOT, "a hot system call") kind(SPIN, "preemption") kind(FAULT, "a page fault") kind(SLEEP, "nanosleep")

static char *pattern(char *in, char *out, uint64_t *x) {
	for (int i = 0; i < VECTORS / 8; i++) ((uint64_t *)in)[i] = next(x);
	memset(out, 0, VECTORS);
	return in;
}

__attribute__((noinline)) static void avx512(char *in, char *out, char *page) { EVENTS(AVX512) }
__attribute__((noinline)) static void avx(char *in, char *out, char *page) { EVENTS(AVX) }
__attribute__((noinline)) static void sse(char *in, char *out, char *page) { EVENTS(SSE) }
__attribute__((noinline)) static void general(char *in, char *out, char *page) { EVENTS(GENERAL) }

__attribute__((noinline)) static void control(char *in, char *out, char *page) {
	static const uint16_t words[] = {0x037f, 0x027f, 0x0f7f, 0x077f};
	double numbers[2] = {(double)(in[0]), 1.0 / 3};
	memset(in, 0, 16);
	*(uint16_t *)in = words[rounds & 3];
	*(uint32_t *)(in + 8) = 0x1f80 | (rounds & 3) << 13;
	memcpy(in + 16, numbers, 16);
	uint32_t usual;
	__asm__ volatile("stmxcsr %0" : "=m"(usual));
	EVENTS(CONTROL)
	__asm__ volatile("ldmxcsr %0" : : "m"(usual));
}

static void onalarm(int sig) {
	char in[VECTORS], out[VECTORS];
	memset(in, sig, sizeof in);
	if (__builtin_cpu_supports("avx512bw")) { __asm__ volatile("vmovdqu64 (%0), %%zmm17\n\tkmovq (%0), %%k3\n\tvmovdqu64 (%0), %%zmm1" : : "r"(in) : "memory", "xmm1"); }
	else if (__builtin_cpu_supports("avx")) __asm__ volatile("vmovdqu (%0), %%ymm1" : : "r"(in) : "memory", "xmm1");
	memcpy(out, in, sizeof in);
}

static void *work(void *id) {
	static __thread char in[VECTORS] __attribute__((aligned(64))), out[VECTORS] __attribute__((aligned(64)));
	char *page = mmap(0, 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	uint64_t x = 88172645463325252ull * ((long)id + 1);
	for (time_t end = time(0) + seconds; time(0) < end; __sync_fetch_and_add(&rounds, 1)) {
		if (__builtin_cpu_supports("avx512bw")) avx512(pattern(in, out, &x), out, page);
		if (__builtin_cpu_supports("avx")) avx(pattern(in, out, &x), out, page);
		sse(pattern(in, out, &x), out, page);
		general(pattern(in, out, &x), out, page);
		control(pattern(in, out, &x), out, page);
	}
	return 0;
}

int main(int argc, char **argv) {
	seconds = argc > 1 ? atoi(argv[1]) : 10;
	long threads = argc > 2 ? atoi(argv[2]) : 4;
	struct sigaction alarm = {.sa_handler = onalarm, .sa_flags = SA_RESTART};
	sigaction(SIGALRM, &alarm, 0);
	pthread_t t[64];
	for (long i = 0; i < threads && i < 64; i++) pthread_create(&t[i], 0, work, (void *)i);
	struct itimerval each = {{0, 1000}, {0, 1000}};
	setitimer(ITIMER_REAL, &each, 0);
	for (time_t end = time(0) + seconds; time(0) < end; usleep(20000)) {
		pid_t p = fork();
		if (!p) _exit(0);
		while (waitpid(p, 0, 0) < 0);
	}
	for (long i = 0; i < threads && i < 64; i++) pthread_join(t[i], 0);
	if (bad) printf("%ld of %ld rounds\n", bad, rounds);
	else printf("ok\n");
	return bad != 0;
}
