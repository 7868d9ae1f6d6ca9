package agent

import (
	"archive/tar"
	"math/rand/v2"
	"testing"
)

// TestFilesOfSeveralNames checks that the result does not depend on which of several names gVisor lists first: removed
// files are removed, and a file's content is at the name that sorts first.
func TestFilesOfSeveralNames(t *testing.T) {
	t.Parallel()
	names := []string{"etc/.#a", "etc/.#b", "etc/.#c", "etc/d"}
	for _, original := range names {
		for range 20 {
			var all []entry
			for _, name := range names {
				gone := entry{name: name, kind: tar.TypeChar}
				file := entry{name: "opt/" + name, kind: tar.TypeReg, size: 7, data: []segment{{0, 7}}}
				if name != original {
					gone = entry{name: name, kind: tar.TypeLink, link: original}
					file = entry{name: "opt/" + name, kind: tar.TypeLink, link: "opt/" + original}
				}
				all = append(all, gone, file)
			}
			all = append(all, entry{name: ".", kind: tar.TypeDir}, entry{name: "etc", kind: tar.TypeDir},
				entry{name: "opt", kind: tar.TypeDir})
			rand.Shuffle(len(all), func(i, j int) { all[i], all[j] = all[j], all[i] })
			settle(all)
			for _, e := range all {
				switch {
				case e.kind == tar.TypeDir:
				case e.name[:3] == "etc":
					if !e.gone() {
						t.Errorf("of %s: %s is still there: %+v", original, e.name, e)
					}
				case e.name == "opt/etc/.#a":
					if e.kind != tar.TypeReg || e.size != 7 || len(e.data) != 1 {
						t.Errorf("of %s: %+v has no content", original, e)
					}
				case e.kind != tar.TypeLink || e.link != "opt/etc/.#a":
					t.Errorf("of %s: %+v is no link to the first", original, e)
				}
			}
		}
	}
}
