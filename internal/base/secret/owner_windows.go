package secret

import "os"

// owned is true: clients on Windows have no key file.
func owned(os.FileInfo) bool { return true }
