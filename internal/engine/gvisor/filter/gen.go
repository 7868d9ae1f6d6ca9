//go:build ignore

// Command gen writes program.json: the seccomp program of gVisor's process with the options that Harvest uses,
// compiled by gVisor's own code. It takes a few minutes, because gVisor compiles the programs for all options.
package main

import (
	"encoding/json"
	"log"
	"os"

	"gvisor.dev/gvisor/pkg/seccomp/precompiledseccomp"
	"gvisor.dev/gvisor/runsc/boot/filter/config"

	"github.com/RelevanceAI/harvest/internal/engine/gvisor/filter"
)

func main() {
	programs, err := config.PrecompiledPrograms()
	if err != nil {
		log.Fatal(err)
	}
	key := filter.Options().ConfigKey()
	for _, p := range programs {
		if p.Name == key {
			nameSelf(p)
			b, err := json.Marshal(p)
			if err != nil {
				log.Fatal(err)
			}
			if err := os.WriteFile("program.json", append(b, '\n'), 0o644); err != nil {
				log.Fatal(err)
			}
			return
		}
	}
	log.Fatalf("gVisor compiles no program for %s", key)
}

// nameSelf turns the PID of the compiling process into a variable. gVisor's rule for tgkill contains the PID;
// the other rules use a variable.
func nameSelf(p precompiledseccomp.Program) {
	const variable, jumpIfEqual, wordsOfInstruction = "self_pid_low32bits", 0x15, 2
	if len(p.VarOffsets[variable]) > 0 {
		return
	}
	for i := 1; i < len(p.Bytecode32); i += wordsOfInstruction {
		if p.Bytecode32[i] == uint32(os.Getpid()) {
			if p.Bytecode32[i-1]&0xffff != jumpIfEqual {
				log.Fatalf("word %d is this process's id, but its instruction compares nothing", i)
			}
			p.VarOffsets[variable] = append(p.VarOffsets[variable], i)
		}
	}
	if len(p.VarOffsets[variable]) != 1 {
		log.Fatalf("this process's id is in the program %d times; run it again", len(p.VarOffsets[variable]))
	}
}
