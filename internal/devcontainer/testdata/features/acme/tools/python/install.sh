#!/bin/sh
set -e
echo "installing python"
