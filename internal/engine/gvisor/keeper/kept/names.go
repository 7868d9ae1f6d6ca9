package kept

import (
	"crypto/sha256"
	"encoding/hex"

	"github.com/RelevanceAI/harvest/internal/engine/gateway/netstack"
)

// File is a small file that each sandbox has, regardless of its image.
type File struct{ Path, Content string }

// NameFiles returns the files for name resolution. None of them comes from this machine. They are consistent with the
// host name.
func NameFiles(hostname, machineID string) []File {
	hosts := "127.0.0.1\tlocalhost\n::1\tlocalhost ip6-localhost ip6-loopback\n"
	if hostname != "" && hostname != "localhost" {
		hosts += "127.0.1.1\t" + hostname + "\n"
	}
	return []File{{"/etc/hosts", hosts}, {"/etc/resolv.conf", "nameserver " + netstack.IPv4().DNS.String() + "\n"},
		{"/etc/hostname", hostname + "\n"}, {"/etc/machine-id", machineID + "\n"}}
}

// MachineID returns the content of a sandbox's /etc/machine-id. It differs between sandboxes of the same image.
func MachineID(id string) string {
	sum := sha256.Sum256([]byte("machine-id of " + id))
	return hex.EncodeToString(sum[:16])
}
