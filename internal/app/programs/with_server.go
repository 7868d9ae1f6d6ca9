//go:build keeper && clientonly

package inner

import _ "embed"

//go:embed server.zst
var packedServer []byte
