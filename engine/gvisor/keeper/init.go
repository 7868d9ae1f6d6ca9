package keeper

import (
	"encoding/binary"
	"os"
	"path/filepath"

	"github.com/erofs/go-erofs"

	"github.com/RelevanceAI/harvest/errors"
)

// initPath is where the init image is mounted in every sandbox, out of the way in /dev and so of every snapshot.
const initPath = "/dev/.harvest"

// initBlock is the size to which the program is padded: gVisor reads file data of whole blocks only.
const initBlock = 4096

// assembler builds the init program: x86-64 machine code that loads at base.
type assembler struct{ code []byte }

const initBase = 0x400000

func (a *assembler) emit(b ...byte) { a.code = append(a.code, b...) }

// initProgram returns a static ELF executable that is process 1 of a sandbox: it lets the kernel reap orphans, sets the host
// name to its first argument if there is one, writes its second argument to the file that its fourth names in the directory
// that its third names, which it makes, if they are there, gives up all capabilities, and sleeps. An image need not bring anything for it, and it costs one page of memory and no start-up time.
func initProgram() []byte {
	const (
		headers = 64 + 56
		// The data follows the code, at fixed offsets from it.
		dataAt    = 192
		actAt     = dataAt      // struct sigaction: SIG_IGN, SA_NOCLDWAIT, no restorer, no mask
		capHeadAt = dataAt + 32 // struct cap_header: _LINUX_CAPABILITY_VERSION_3, this process
		capDataAt = dataAt + 40 // two empty struct cap_data
		end       = dataAt + 64
	)
	var a assembler
	// lea loads the address of the data at offset into a register: op is its opcode bytes.
	lea := func(op []byte, offset int) {
		a.emit(op...)
		rel := make([]byte, 4)
		binary.LittleEndian.PutUint32(rel, uint32(offset-(len(a.code)+4)))
		a.emit(rel...)
	}
	syscall := func(number byte) { a.emit(0xb8, number, 0, 0, 0, 0x0f, 0x05) } // mov eax, number; syscall

	// rt_sigaction(SIGCHLD, act, nil, 8)
	a.emit(0xbf, 17, 0, 0, 0)            // mov edi, 17
	lea([]byte{0x48, 0x8d, 0x35}, actAt) // lea rsi, [act]
	a.emit(0x31, 0xd2)                   // xor edx, edx
	a.emit(0x41, 0xba, 8, 0, 0, 0)       // mov r10d, 8
	syscall(13)
	// if argc >= 2: sethostname(argv[1], strlen(argv[1]))
	a.emit(0x48, 0x83, 0x3c, 0x24, 2)    // cmp qword [rsp], 2
	a.emit(0x7c, 24)                     // jl over the next 24 bytes
	a.emit(0x48, 0x8b, 0x7c, 0x24, 0x10) // mov rdi, [rsp+16]
	a.emit(0x31, 0xf6)                   // xor esi, esi
	a.emit(0x80, 0x3c, 0x37, 0)          // cmp byte [rdi+rsi], 0
	a.emit(0x74, 4)                      // je over the next 4 bytes
	a.emit(0xff, 0xc6)                   // inc esi
	a.emit(0xeb, 0xf6)                   // jmp to the cmp
	syscall(170)
	// if argc >= 5: mkdir(argv[3], 0755); fd = open(argv[4], O_WRONLY); write(fd, argv[2], strlen(argv[2])); close(fd)
	a.emit(0x48, 0x83, 0x3c, 0x24, 5)    // cmp qword [rsp], 5
	a.emit(0x7c, 69)                     // jl over the next 69 bytes
	a.emit(0x48, 0x8b, 0x7c, 0x24, 0x20) // mov rdi, [rsp+32]
	a.emit(0xbe, 0xed, 1, 0, 0)          // mov esi, 0755
	syscall(83)
	a.emit(0x48, 0x8b, 0x7c, 0x24, 0x28) // mov rdi, [rsp+40]
	a.emit(0xbe, 1, 0, 0, 0)             // mov esi, O_WRONLY
	a.emit(0x31, 0xd2)                   // xor edx, edx
	syscall(2)
	a.emit(0x89, 0xc7)                   // mov edi, eax
	a.emit(0x48, 0x8b, 0x74, 0x24, 0x18) // mov rsi, [rsp+24]
	a.emit(0x31, 0xd2)                   // xor edx, edx
	a.emit(0x80, 0x3c, 0x16, 0)          // cmp byte [rsi+rdx], 0
	a.emit(0x74, 4)                      // je over the next 4 bytes
	a.emit(0xff, 0xc2)                   // inc edx
	a.emit(0xeb, 0xf6)                   // jmp to the cmp
	syscall(1)
	syscall(3)
	// capset(header, data)
	lea([]byte{0x48, 0x8d, 0x3d}, capHeadAt) // lea rdi, [header]
	lea([]byte{0x48, 0x8d, 0x35}, capDataAt) // lea rsi, [data]
	syscall(126)
	// for { pause() }
	syscall(34)
	a.emit(0xeb, 0xf7) // jmp to the pause

	image := make([]byte, initBlock)
	copy(image, "\x7fELF\x02\x01\x01") // 64 bit, little endian, version 1
	le := binary.LittleEndian
	le.PutUint16(image[16:], 2)  // ET_EXEC
	le.PutUint16(image[18:], 62) // EM_X86_64
	le.PutUint32(image[20:], 1)
	le.PutUint64(image[24:], initBase+headers) // entry
	le.PutUint64(image[32:], 64)               // program headers
	le.PutUint16(image[52:], 64)               // size of this header
	le.PutUint16(image[54:], 56)               // size of a program header
	le.PutUint16(image[56:], 1)                // one of them
	ph := image[64:]
	le.PutUint32(ph, 1)                // PT_LOAD
	le.PutUint32(ph[4:], 5)            // readable, executable
	le.PutUint64(ph[16:], initBase)    // virtual address
	le.PutUint64(ph[24:], initBase)    // physical address
	le.PutUint64(ph[32:], headers+end) // size in the file
	le.PutUint64(ph[40:], headers+end) // size in memory
	le.PutUint64(ph[48:], initBlock)   // alignment
	copy(image[headers:], a.code)
	data := image[headers:]
	le.PutUint64(data[actAt:], 1)              // SIG_IGN
	le.PutUint64(data[actAt+8:], 2)            // SA_NOCLDWAIT
	le.PutUint32(data[capHeadAt:], 0x20080522) // version 3
	return image
}

// WriteInit makes the init image at path, atomically, unless it is there.
func WriteInit(path string) error {
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
