//go:build keeper && clientonly

package programs

import _ "embed"

//go:embed server.zst
var packedServer []byte
