// Package initprog makes the first program of each container: a few instructions that write files such as /etc/hosts
// and then sleep, or start a command.
package initprog

import (
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"os"
	"path/filepath"

	"github.com/erofs/go-erofs"

	"github.com/RelevanceAI/harvest/client/errors"
)

// Path is the mount point of the init image in every sandbox. Because it is below /dev, it is in no
// snapshot.
const Path = "/dev/.harvest"

// block is the size to which the program is padded, because gVisor reads file data in whole blocks only.
const block = 4096

// assembler builds the init program: x86-64 machine code that is loaded at initBase.
type assembler struct{ code []byte }

const initBase = 0x400000

func (a *assembler) emit(b ...byte) { a.code = append(a.code, b...) }

// relative emits an instruction whose last four bytes are the distance from its end to target.
func (a *assembler) relative(target int, op ...byte) {
	a.emit(op...)
	a.code = binary.LittleEndian.AppendUint32(a.code, uint32(target-(len(a.code)+4)))
}

// ahead emits a jump. Calling the returned function sets its target to the current position.
func (a *assembler) ahead(op ...byte) func() {
	a.relative(0, op...)
	end := len(a.code)
	return func() { binary.LittleEndian.PutUint32(a.code[end-4:], uint32(len(a.code)-end)) }
}

// syscall emits mov eax, number; syscall.
func (a *assembler) syscall(number byte) { a.emit(0xb8, number, 0, 0, 0, 0x0f, 0x05) }

// length emits code that stores the length of the string at [rsi] in edx.
func (a *assembler) length() {
	a.emit(0x31, 0xd2)          // xor edx, edx
	a.emit(0x80, 0x3c, 0x16, 0) // cmp byte [rsi+rdx], 0
	a.emit(0x74, 4)             // je over the next 4 bytes
	a.emit(0xff, 0xc2)          // inc edx
	a.emit(0xeb, 0xf6)          // jmp to the cmp
}

// Step is a file that the init program writes.
type Step struct {
	Dir     string // created if missing
	File    string // created if missing, and written
	Content string
	Rename  string // final path; replaces an existing file or symbolic link; "" for no rename
}

// Args returns the arguments of the init program.
func Args(program, hostname string, steps ...Step) []string {
	args := []string{program, hostname}
	for _, s := range steps {
		args = append(args, s.Dir, s.File, s.Content, s.Rename)
	}
	return args
}

// orders is the address of the orders of an init program without arguments. It reads them from its standard
// input: the stack that it would have had with arguments, at that address.
const (
	orders    = 0x600000
	maxOrders = 4096 // within PIPE_BUF, so that a write is atomic
)

// Stack encodes the arguments for an init program without arguments.
func Stack(args []string) ([]byte, error) {
	le := binary.LittleEndian
	stack := le.AppendUint64(nil, uint64(len(args)))
	end := orders + 8*(1+len(args)+1)
	for _, arg := range args {
		stack = le.AppendUint64(stack, uint64(end))
		end += len(arg) + 1
	}
	stack = le.AppendUint64(stack, 0)
	for _, arg := range args {
		stack = append(append(stack, arg...), 0)
	}
	if len(stack) > maxOrders {
		return nil, errors.Errorf("%d bytes are too much for the init program", len(stack))
	}
	return stack, nil
}

// Offsets of the init program's data from the start of its code.
const (
	data        = 320
	initAct     = data      // struct sigaction: SIG_IGN, SA_NOCLDWAIT, no restorer, no mask
	initCapHead = data + 32 // struct cap_header: _LINUX_CAPABILITY_VERSION_3, this process
	initCapData = data + 40 // two empty struct cap_data
	initMounts  = data + 64 // "/proc/mounts"
	initMtab    = data + 80 // "/etc/mtab"
	initEnd     = data + 96
)

// code returns the code of the init program.
func code() []byte {
	var a assembler
	// rt_sigaction(SIGCHLD, act, nil, 8)
	a.emit(0xbf, 17, 0, 0, 0)             // mov edi, 17
	a.relative(initAct, 0x48, 0x8d, 0x35) // lea rsi, [act]
	a.emit(0x31, 0xd2)                    // xor edx, edx
	a.emit(0x41, 0xba, 8, 0, 0, 0)        // mov r10d, 8
	a.syscall(13)
	a.emit(0x48, 0x83, 0x3c, 0x24, 2) // cmp qword [rsp], 2
	arguments := a.ahead(0x0f, 0x8d)  // jge
	// read(0, orders, maxInitOrders); without input, there is nothing to do
	a.emit(0x31, 0xff)                                        // xor edi, edi
	a.emit(0xbe)                                              // mov esi, orders
	a.code = binary.LittleEndian.AppendUint32(a.code, orders) //
	a.emit(0xba, 0, maxOrders>>8, 0, 0)                       // mov edx, maxInitOrders
	a.syscall(0)
	a.emit(0x85, 0xc0)             // test eax, eax
	nothing := a.ahead(0x0f, 0x8e) // jle
	a.emit(0x48, 0x89, 0xf4)       // mov rsp, rsi
	arguments()
	// sethostname(argv[1], strlen(argv[1]))
	a.emit(0x48, 0x8b, 0x74, 0x24, 0x10) // mov rsi, [rsp+16]
	a.emit(0x48, 0x89, 0xf7)             // mov rdi, rsi
	a.length()
	a.emit(0x89, 0xd6) // mov esi, edx
	a.syscall(170)
	// for p = &argv[2]; *p != nil; p += 4 { dir, file, content, rename = p[0], p[1], p[2], p[3]; … }
	a.emit(0x48, 0x8d, 0x5c, 0x24, 0x18) // lea rbx, [rsp+24]
	loop := len(a.code)
	a.emit(0x48, 0x8b, 0x3b)      // mov rdi, [rbx]
	a.emit(0x48, 0x85, 0xff)      // test rdi, rdi
	noMore := a.ahead(0x0f, 0x84) // je
	// mkdir(dir, 0755)
	a.emit(0xbe, 0xed, 1, 0, 0) // mov esi, 0755
	a.syscall(83)
	// fd = open(file, O_WRONLY|O_CREAT|O_TRUNC, 0644)
	a.emit(0x48, 0x8b, 0x7b, 0x08) // mov rdi, [rbx+8]
	a.emit(0xbe, 0x41, 2, 0, 0)    // mov esi, 01101
	a.emit(0xba, 0xa4, 1, 0, 0)    // mov edx, 0644
	a.syscall(2)
	// write(fd, content, strlen(content)); close(fd)
	a.emit(0x89, 0xc7)             // mov edi, eax
	a.emit(0x48, 0x8b, 0x73, 0x10) // mov rsi, [rbx+16]
	a.length()
	a.syscall(1)
	a.syscall(3)
	// rename(file, rename)
	a.emit(0x48, 0x8b, 0x7b, 0x08) // mov rdi, [rbx+8]
	a.emit(0x48, 0x8b, 0x73, 0x18) // mov rsi, [rbx+24]
	a.syscall(82)
	a.emit(0x48, 0x83, 0xc3, 0x20) // add rbx, 32
	a.relative(loop, 0xe9)         // jmp
	noMore()
	// Clear the arguments after the first, so that ps shows the name of the program alone.
	a.emit(0x48, 0x8b, 0x73, 0xf8) // mov rsi, [rbx-8]
	a.length()
	a.emit(0x48, 0x8d, 0x0c, 0x16)       // lea rcx, [rsi+rdx]
	a.emit(0x48, 0x8b, 0x7c, 0x24, 0x10) // mov rdi, [rsp+16]
	a.emit(0x48, 0x29, 0xf9)             // sub rcx, rdi
	a.emit(0x31, 0xc0)                   // xor eax, eax
	a.emit(0xf3, 0xaa)                   // rep stosb
	// symlink("/proc/mounts", "/etc/mtab"), which fails if the image has it
	a.relative(initMounts, 0x48, 0x8d, 0x3d) // lea rdi, [mounts]
	a.relative(initMtab, 0x48, 0x8d, 0x35)   // lea rsi, [mtab]
	a.syscall(88)
	// capset(header, data)
	a.relative(initCapHead, 0x48, 0x8d, 0x3d) // lea rdi, [header]
	a.relative(initCapData, 0x48, 0x8d, 0x35) // lea rsi, [data]
	a.syscall(126)
	// write(1, data, 1): ready
	a.emit(0xbf, 1, 0, 0, 0) // mov edi, 1
	a.emit(0xba, 1, 0, 0, 0) // mov edx, 1
	a.syscall(1)
	nothing()
	// for { pause() }
	forever := len(a.code)
	a.syscall(34)
	a.relative(forever, 0xe9) // jmp
	return a.code
}

// initProgram returns a static ELF executable that is process 1 of a sandbox. It makes the kernel reap orphans,
// sets the host name to its first argument, and writes the files in its other arguments (initArgs). It creates
// /etc/mtab, which mount.fuse and other programs need. Then it drops all capabilities, writes a byte to its
// standard output, and sleeps. Without arguments, it first reads them from its standard input (initStack). An
// image needs no files for it. It costs one page of memory and no start-up time.
func initProgram() []byte {
	const headers = 64 + 2*56
	image := make([]byte, block)
	copy(image, "\x7fELF\x02\x01\x01") // 64 bit, little endian, version 1
	le := binary.LittleEndian
	le.PutUint16(image[16:], 2)  // ET_EXEC
	le.PutUint16(image[18:], 62) // EM_X86_64
	le.PutUint32(image[20:], 1)
	le.PutUint64(image[24:], initBase+headers) // entry
	le.PutUint64(image[32:], 64)               // program headers
	le.PutUint16(image[52:], 64)               // size of this header
	le.PutUint16(image[54:], 56)               // size of a program header
	le.PutUint16(image[56:], 2)                // two of them
	ph := image[64:]
	le.PutUint32(ph, 1)                    // PT_LOAD
	le.PutUint32(ph[4:], 5)                // readable, executable
	le.PutUint64(ph[16:], initBase)        // virtual address
	le.PutUint64(ph[24:], initBase)        // physical address
	le.PutUint64(ph[32:], headers+initEnd) // size in the file
	le.PutUint64(ph[40:], headers+initEnd) // size in memory
	le.PutUint64(ph[48:], block)           // alignment
	ph = ph[56:]                           // data that it reads, in anonymous memory
	le.PutUint32(ph, 1)                    // PT_LOAD
	le.PutUint32(ph[4:], 6)                // readable, writable
	le.PutUint64(ph[16:], orders)          // virtual address
	le.PutUint64(ph[24:], orders)
	le.PutUint64(ph[40:], maxOrders)
	le.PutUint64(ph[48:], block)
	copy(image[headers:], code())
	data := image[headers:]
	le.PutUint64(data[initAct:], 1)              // SIG_IGN
	le.PutUint64(data[initAct+8:], 2)            // SA_NOCLDWAIT
	le.PutUint32(data[initCapHead:], 0x20080522) // version 3
	copy(data[initMounts:], "/proc/mounts")
	copy(data[initMtab:], "/etc/mtab")
	return image
}

// Name returns the file name of the init image. It depends on the program, so that a sandbox keeps its
// version.
func Name() string {
	sum := sha256.Sum256(initProgram())
	return "init-" + hex.EncodeToString(sum[:4]) + ".erofs"
}

// Write creates the init image at path atomically, unless it exists.
func Write(path string) error {
	if _, err := os.Stat(path); err == nil {
		return nil
	}
	tmp, err := os.CreateTemp(filepath.Dir(path), ".init-")
	if err != nil {
		return errors.Wrapf(err, "create init image")
	}
	defer os.Remove(tmp.Name())
	defer tmp.Close()
	w := erofs.Create(tmp)
	for _, dir := range []string{"/proc", "/sys", "/dev", "/tmp"} {
		if err := w.Mkdir(dir, 0o755); err != nil {
			return errors.Wrapf(err, "fill init image")
		}
	}
	f, err := w.Create("/init")
	if err != nil {
		return errors.Wrapf(err, "fill init image")
	}
	_, err = f.Write(initProgram())
	err = errors.Join(err, f.Chmod(0o755), f.Close(), w.Close(), tmp.Close())
	if err != nil {
		return errors.Wrapf(err, "write init image")
	}
	return errors.Wrapf(os.Rename(tmp.Name(), path), "publish init image")
}
