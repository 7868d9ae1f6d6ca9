package oci

import (
	"bufio"
	"bytes"
	"strings"

	"github.com/RelevanceAI/harvest/internal/image"
	"github.com/RelevanceAI/harvest/internal/image/rootfs"
)

// release returns the distribution of an image from its os-release.
func release(w *rootfs.Writer) []image.Part {
	for _, name := range []string{"/etc/os-release", "/usr/lib/os-release"} {
		text, err := w.ReadFile(name, 64<<10)
		if err != nil {
			continue
		}
		values := map[string]string{}
		lines := bufio.NewScanner(bytes.NewReader(text))
		for lines.Scan() {
			key, value, _ := strings.Cut(strings.TrimSpace(lines.Text()), "=")
			values[key] = strings.Trim(value, `"'`)
		}
		if values["ID"] != "" {
			return []image.Part{{Name: values["ID"], Version: values["VERSION_ID"]}}
		}
	}
	return nil
}
